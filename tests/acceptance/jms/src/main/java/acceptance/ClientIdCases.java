package acceptance;

import jakarta.jms.Connection;
import jakarta.jms.InvalidClientIDException;
import jakarta.jms.JMSException;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.util.Map;

/** Two connections of one client id: the client asks the service to refuse the second. */
final class ClientIdCases {
    private static final String ID = "jms.clientID=";

    private ClientIdCases() {}

    static Map<String, Driver.Case> all() {
        return Map.of(
                "client-id-twice", ClientIdCases::twice,
                "client-id-over-kills", ClientIdCases::overKills);
    }

    private static void twice(Broker broker, Map<String, Object> seen) throws Exception {
        Connection first = reader(broker);
        seen.put("second", refusal(broker));
        seen.put("first", works(broker, first));
        first.close();
        seen.put("after_close", works(broker, reader(broker)));
    }

    /** A connection that finds its way back is not refused for the one that it lost. */
    private static void overKills(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.reconnecting(ID + broker.address("reader"));
        Session session = Broker.automatic(connection);
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        for (int round = 0; round < 2; round++) {
            Driver.step("kill " + round);
            Broker.send(session, producer, "round" + round + "/", 2);
        }
        seen.put("second", refusal(broker));
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        seen.put("received", Broker.receive(consumer, 4));
    }

    private static Connection reader(Broker broker) throws JMSException {
        return broker.connect(ID + broker.address("reader"));
    }

    /** What a second connection of the client id gets. */
    private static String refusal(Broker broker) throws JMSException {
        try {
            reader(broker);
            return "connected";
        } catch (InvalidClientIDException refused) {
            return refused.getClass().getSimpleName();
        }
    }

    private static String works(Broker broker, Connection connection) throws JMSException {
        Session session = Broker.automatic(connection);
        Broker.send(session, session.createProducer(broker.queue(session, "q")), "m", 1);
        return Broker.receive(session.createConsumer(broker.queue(session, "q")), 1).get(0);
    }
}
