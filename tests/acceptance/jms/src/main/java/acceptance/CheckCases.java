package acceptance;

import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Checkable transactions that a JMS client leaves, and JMS consumers as their checkers. */
final class CheckCases {
    /** Qpid JMS's own session mode: each message is acknowledged by itself. */
    private static final int INDIVIDUAL_ACKNOWLEDGE = 101;

    private static final String ACK_TYPE = "JMS_AMQP_ACK_TYPE";
    private static final int ACCEPTED = 1;
    private static final Map<String, Integer> ACK_TYPES =
            Map.of("accept", ACCEPTED, "reject", 2, "release", 3, "modify", 4, "modify undeliverable", 5);

    private CheckCases() {}

    static Map<String, Driver.Case> all() {
        return Map.of(
                "leave-by-property", (broker, seen) -> leave(broker, "jms-shop-orders", "jms-shop"),
                "leave-by-kind", (broker, seen) -> leave(broker, "jms-deals", null),
                "checkable-transfer", (broker, seen) -> transfer(broker),
                "two-groups", CheckCases::twoGroups,
                "check-individually", (broker, seen) -> answer(broker, seen, "jms-shop"),
                "check-with-prefetch", (broker, seen) -> answer(broker, seen, "jms-deals"),
                "check-by-recover", CheckCases::recover);
    }

    /** One transaction for each outcome, and one for a checker that recovers; the process is killed with them. */
    private static void leave(Broker broker, String address, String group) throws Exception {
        Connection connection = broker.connect("jms.validatePropertyNames=false", "jms.forceSyncSend=true");
        for (String outcome : ACK_TYPES.keySet()) {
            Session session = Broker.transacted(connection);
            TextMessage message = session.createTextMessage(outcome);
            if (group != null) {
                message.setStringProperty("producer-group", group);
            }
            session.createProducer(session.createQueue(address)).send(message);
        }
        Driver.step("kill");
    }

    /** Each transaction takes a message and posts its text: rolled back, committed, and left when the process is killed. */
    private static void transfer(Broker broker) throws Exception {
        Connection connection = broker.connect("jms.validatePropertyNames=false", "jms.forceSyncSend=true");
        Session session = Broker.transacted(connection);
        MessageConsumer inputs = session.createConsumer(session.createQueue("jms-in"));
        MessageProducer outputs = session.createProducer(session.createQueue("jms-out"));
        for (String end : List.of("roll back", "commit", "leave")) {
            TextMessage message = session.createTextMessage(Broker.text(Broker.receive(inputs)));
            message.setStringProperty("producer-group", "jms-transfer");
            outputs.send(message);
            if (end.equals("roll back")) {
                session.rollback();
            } else if (end.equals("commit")) {
                session.commit();
            }
        }
        Driver.step("kill");
    }

    /** Answers with the outcome that a check's text names; where that leaves it unknown, accepts it the second time. */
    private static void answer(Broker broker, Map<String, Object> seen, String group) throws Exception {
        Connection connection =
                group.equals("jms-shop") ? broker.connect("jms.prefetchPolicy.all=0") : broker.connect();
        Session session = connection.createSession(false, INDIVIDUAL_ACKNOWLEDGE);
        MessageConsumer checks = session.createConsumer(session.createQueue("$check/" + group));
        List<String> asked = new ArrayList<>();
        Set<String> decided = new HashSet<>();
        while (decided.size() < ACK_TYPES.size()) {
            Message check = Broker.receive(checks);
            String text = Broker.text(check);
            boolean again = asked.contains(text);
            asked.add(text);
            check.setIntProperty(ACK_TYPE, again ? ACCEPTED : ACK_TYPES.get(text));
            check.acknowledge();
            if (again || ACK_TYPES.get(text) <= 2) {
                decided.add(text);
            }
        }
        connection.close();
        asked.sort(null);
        seen.put("asked", asked);
    }

    /** A session that is recovered leaves it unknown; acknowledging the session commits. */
    private static void recover(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect("jms.prefetchPolicy.all=0");
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer checks = session.createConsumer(session.createQueue("$check/jms-recover"));
        List<String> asked = new ArrayList<>();
        asked.add(Broker.text(Broker.receive(checks)));
        session.recover();
        Message check = Broker.receive(checks);
        asked.add(Broker.text(check));
        check.acknowledge();
        connection.close();
        seen.put("asked", asked);
    }

    /** Two producer groups in one transaction: the second send says so, and the commit fails. */
    private static void twoGroups(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect("jms.validatePropertyNames=false", "jms.forceSyncSend=true");
        Session session = Broker.transacted(connection);
        for (String group : List.of("one", "another")) {
            TextMessage message = session.createTextMessage(group);
            message.setStringProperty("producer-group", group);
            try {
                session.createProducer(broker.queue(session, "q")).send(message);
            } catch (Exception error) {
                seen.put("send", error.getMessage());
            }
        }
        try {
            session.commit();
        } catch (Exception error) {
            seen.put("commit", error.getMessage());
        }
        connection.close();
        seen.put("left", broker.takeAll("q"));
    }
}
