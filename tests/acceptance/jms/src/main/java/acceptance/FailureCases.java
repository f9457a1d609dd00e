package acceptance;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TransactionRolledBackException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/** The service is killed in the middle; what was acknowledged is there after, whole, and once. */
final class FailureCases {
    private FailureCases() {}

    static Map<String, Driver.Case> all() {
        return Map.of(
                "elsewhere", FailureCases::elsewhere,
                "reconnect", FailureCases::reconnect,
                "transaction-over-a-kill", FailureCases::transactionOverAKill,
                "commit-in-doubt", FailureCases::commitInDoubt,
                "failover", FailureCases::failover);
    }

    private static void reconnect(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.reconnecting();
        Session session = Broker.automatic(connection);
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        Broker.send(session, producer, "before", 50);
        Driver.step("kill and restart");
        Broker.send(session, producer, "after", 50);
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        seen.put("received", Broker.receive(consumer, 100));
        connection.close();
        seen.put("left", broker.takeAll("q"));
    }

    /** Another service has the address: the exceptions say where, and the connection goes on. */
    private static void elsewhere(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.reconnecting();
        Session session = Broker.automatic(connection);
        try {
            session.createProducer(broker.queue(session, "q"));
        } catch (JMSException refused) {
            seen.put("producer", refused.getMessage());
        }
        try {
            session.createConsumer(broker.queue(session, "q"));
        } catch (JMSException refused) {
            seen.put("consumer", refused.getMessage());
        }
        Queue here = session.createQueue("here.jms");
        Broker.send(session, session.createProducer(here), "m", 1);
        seen.put("here", Broker.receive(session.createConsumer(here), 1));
    }

    private static void transactionOverAKill(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.reconnecting();
        Session session = Broker.transacted(connection);
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        Broker.send(session, producer, "committed", 2);
        session.commit();
        Broker.send(session, producer, "cut", 2);
        Driver.step("kill and restart");
        Broker.send(session, producer, "cut too", 1);
        try {
            session.commit();
            seen.put("commit", "succeeded");
        } catch (JMSException error) {
            seen.put("commit", error.getClass().getSimpleName());
        }
        // until it is connected again, the client rolls back whatever it is given
        boolean committed = false;
        while (!committed) {
            try {
                Broker.send(session, producer, "later", 1);
                session.commit();
                committed = true;
            } catch (TransactionRolledBackException stillAway) {
                Thread.sleep(50);
            }
        }
        connection.close();
        seen.put("received", broker.takeAll("q"));
    }

    /** Commits without a pause while the test kills the service; each answer is remembered. */
    private static void commitInDoubt(Broker broker, Map<String, Object> seen) throws Exception {
        List<String> committed = new ArrayList<>();
        List<String> unknown = new ArrayList<>();
        List<String> errors = new ArrayList<>();
        int number = 0;
        for (int round = 0; round < 5; round++) {
            Connection connection = broker.connect();
            CountDownLatch underWay = new CountDownLatch(1);
            int first = number;
            Committer committer = new Committer(broker, connection, first, committed, unknown, underWay);
            Thread thread = new Thread(committer);
            thread.start();
            underWay.await();
            Driver.step("kill");
            thread.join();
            number = committer.next;
            errors.add(committer.error);
            Driver.step("restart");
        }
        seen.put("size", Committer.SIZE);
        seen.put("committed", committed);
        seen.put("unknown", unknown);
        seen.put("errors", errors);
        seen.put("received", broker.takeAll("q"));
    }

    /**
     * Two services on one store, {@code URL1,URL2}: commits go on at the second when the first is killed. What was cut
     * is told to have been rolled back, or is in doubt.
     */
    private static void failover(Broker broker, Map<String, Object> seen) throws Exception {
        List<String> committed = new ArrayList<>();
        List<String> cut = new ArrayList<>();
        Connection connection = broker.reconnecting();
        Session session = Broker.transacted(connection);
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        Thread kill = new Thread(() -> {
            try {
                Driver.step("kill the first");
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        int after = 0;
        for (int number = 0; after < 20; number++) {
            String name = "t" + number;
            if (number == 20) {
                kill.start();
            }
            boolean killed = number > 20 && !kill.isAlive();
            try {
                Broker.send(session, producer, name + "/", Committer.SIZE);
                session.commit();
                committed.add(name);
                after += killed ? 1 : 0;
            } catch (TransactionRolledBackException inDoubt) {
                cut.add(name);
            }
        }
        connection.close();
        seen.put("size", Committer.SIZE);
        seen.put("committed", committed);
        seen.put("cut", cut);
        try (Broker second = new Broker(broker.url.substring(broker.url.indexOf(',') + 1), "failover")) {
            seen.put("received", second.takeAll("q"));
        }
    }

    /** Transactions of {@link #SIZE} messages until the connection breaks. */
    private static final class Committer implements Runnable {
        static final int SIZE = 5;

        private final Broker broker;
        private final Connection connection;
        private final List<String> committed;
        private final List<String> unknown;
        private final CountDownLatch underWay;
        private int next;
        private String error;

        Committer(
                Broker broker,
                Connection connection,
                int first,
                List<String> committed,
                List<String> unknown,
                CountDownLatch underWay) {
            this.broker = broker;
            this.connection = connection;
            this.next = first;
            this.committed = committed;
            this.unknown = unknown;
            this.underWay = underWay;
        }

        @Override
        public void run() {
            int done = 0;
            try {
                Session session = Broker.transacted(connection);
                MessageProducer producer = session.createProducer(broker.queue(session, "q"));
                while (true) {
                    String name = "t" + next++;
                    unknown.add(name);
                    Broker.send(session, producer, name + "/", SIZE);
                    session.commit();
                    unknown.remove(name);
                    committed.add(name);
                    if (++done == 20) {
                        underWay.countDown();
                    }
                }
            } catch (JMSException broken) {
                error = broken.toString();
                underWay.countDown(); // what was under way is unknown; the next round goes on with the next number
            }
        }
    }
}
