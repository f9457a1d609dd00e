package acceptance;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Transacted sessions: what is seen before and after a commit and a rollback. */
final class TransactionCases {
    private TransactionCases() {}

    static Map<String, Driver.Case> all() {
        return Map.ofEntries(
                Map.entry("commit-and-rollback", TransactionCases::commitAndRollback),
                Map.entry("rollback-with-prefetch", TransactionCases::rollbackWithPrefetch),
                Map.entry("refused-post", TransactionCases::refusedPost),
                Map.entry("consume", TransactionCases::consume),
                Map.entry("idle-between-commits", TransactionCases::idleBetweenCommits),
                Map.entry("transfer", TransactionCases::transfer),
                Map.entry("many-addresses", TransactionCases::manyAddresses),
                Map.entry("anonymous-producer", TransactionCases::anonymousProducer),
                Map.entry("browser", TransactionCases::browser),
                Map.entry("listener", TransactionCases::listener),
                Map.entry("listeners", TransactionCases::listeners),
                Map.entry("connection-lost", TransactionCases::connectionLost),
                Map.entry("ten-thousand", TransactionCases::tenThousand),
                Map.entry("large-transaction", TransactionCases::largeTransaction),
                Map.entry("many-sessions", TransactionCases::manySessions));
    }

    private static void commitAndRollback(Broker broker, Map<String, Object> seen) throws Exception {
        Session session = Broker.transacted(broker.connect());
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        Session reader = Broker.automatic(broker.connect());
        MessageConsumer consumer = reader.createConsumer(broker.queue(reader, "q"));

        Broker.send(session, producer, "committed", 3);
        broker.mark("q", "before commit");
        seen.put("before_commit", Broker.receiveUpTo(consumer, "before commit"));
        session.commit();
        seen.put("after_commit", Broker.receive(consumer, 3));

        Broker.send(session, producer, "rolled back", 3);
        session.rollback();
        Broker.send(session, producer, "next", 1);
        session.commit();
        broker.mark("q", "end");
        seen.put("after_rollback", Broker.receiveUpTo(consumer, "end"));
    }

    /** A post that is refused after {@code send} has returned; then the same session commits another. */
    private static void refusedPost(Broker broker, Map<String, Object> seen) throws Exception {
        Session session = Broker.transacted(broker.connect());
        MessageProducer producer = session.createProducer(null);
        producer.send(broker.queue(session, "q"), session.createTextMessage("beside it"));
        producer.send(session.createQueue("$nowhere"), session.createTextMessage("refused"));
        try {
            session.commit();
        } catch (JMSException error) {
            seen.put("thrown", error.getClass().getName());
            seen.put("code", String.valueOf(error.getErrorCode()));
            seen.put("message", error.getMessage());
        }
        producer.send(broker.queue(session, "q"), session.createTextMessage("after it"));
        session.commit();
        seen.put("received", broker.takeAll("q"));
    }

    private static void idleBetweenCommits(Broker broker, Map<String, Object> seen) throws Exception {
        Session session = Broker.transacted(broker.connect());
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        Broker.send(session, producer, "before", 1);
        session.commit();
        Thread.sleep(3000);
        List<String> received = new ArrayList<>(Broker.receive(consumer, 1));
        session.commit();
        Thread.sleep(3000);
        Broker.send(session, producer, "after", 2);
        session.commit();
        received.addAll(Broker.receive(consumer, 2));
        session.commit();
        seen.put("received", received);
    }

    private static void rollbackWithPrefetch(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session writer = Broker.automatic(connection);
        Broker.send(writer, writer.createProducer(broker.queue(writer, "q")), "m", 10);

        Session session = Broker.transacted(connection);
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        seen.put("first", Broker.receive(consumer, 4));
        session.rollback();
        List<String> texts = new ArrayList<>();
        List<Integer> counts = new ArrayList<>();
        List<Boolean> redelivered = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            Message message = Broker.receive(consumer);
            texts.add(Broker.text(message));
            counts.add(message.getIntProperty("JMSXDeliveryCount"));
            redelivered.add(message.getJMSRedelivered());
        }
        session.commit();
        seen.put("second", texts);
        seen.put("delivery_counts", counts);
        seen.put("redelivered", redelivered);
        session.close();
        seen.put("left", broker.takeAll("q"));
    }

    private static void consume(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session writer = Broker.automatic(connection);
        Broker.send(writer, writer.createProducer(broker.queue(writer, "q")), "m", 6);

        Session session = Broker.transacted(connection);
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        seen.put("committed", Broker.receive(consumer, 3));
        session.commit();
        seen.put("rolled_back", Broker.receive(consumer, 2));
        session.rollback();
        // not committed when its session ends: rolled back
        seen.put("abandoned", Broker.receive(consumer, 2));
        connection.close();
        seen.put("left", broker.takeAll("q"));
    }

    private static void transfer(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session writer = Broker.automatic(connection);
        Broker.send(writer, writer.createProducer(broker.queue(writer, "from")), "m", 4);

        Session session = Broker.transacted(connection);
        MessageConsumer from = session.createConsumer(broker.queue(session, "from"));
        MessageProducer to = session.createProducer(broker.queue(session, "to"));
        for (String text : Broker.receive(from, 2)) {
            to.send(session.createTextMessage("rolled back " + text));
        }
        session.rollback();
        for (String text : Broker.receive(from, 2)) {
            to.send(session.createTextMessage("moved " + text));
        }
        session.commit();
        connection.close();
        seen.put("from", broker.takeAll("from"));
        seen.put("to", broker.takeAll("to"));
    }

    private static void manyAddresses(Broker broker, Map<String, Object> seen) throws Exception {
        Session session = Broker.transacted(broker.connect());
        List<String> names = List.of("a", "b", "c", "d", "e");
        for (String outcome : List.of("rolled back", "committed")) {
            for (String name : names) {
                try (MessageProducer producer = session.createProducer(broker.queue(session, name))) {
                    producer.send(session.createTextMessage(outcome + " " + name));
                }
            }
            if (outcome.equals("committed")) {
                session.commit();
            } else {
                session.rollback();
            }
        }
        for (String name : names) {
            seen.put(name, broker.takeAll(name));
        }
    }

    private static void anonymousProducer(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session plain = Broker.automatic(connection);
        MessageProducer anywhere = plain.createProducer(null);
        anywhere.send(broker.queue(plain, "a"), plain.createTextMessage("plain a"));
        anywhere.send(broker.queue(plain, "b"), plain.createTextMessage("plain b"));

        Session session = Broker.transacted(connection);
        MessageProducer producer = session.createProducer(null);
        for (String outcome : List.of("rolled back", "committed")) {
            for (String name : List.of("a", "b")) {
                producer.send(broker.queue(session, name), session.createTextMessage(outcome + " " + name));
            }
            if (outcome.equals("committed")) {
                session.commit();
            } else {
                session.rollback();
            }
        }
        seen.put("a", broker.takeAll("a"));
        seen.put("b", broker.takeAll("b"));
    }

    private static void browser(Broker broker, Map<String, Object> seen) throws Exception {
        Session session = Broker.transacted(broker.connect());
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        Broker.send(session, producer, "m", 3);
        seen.put("before_commit", broker.browse("q"));
        session.commit();
        seen.put("after_commit", broker.browse("q"));
        seen.put("again", broker.browse("q"));
        seen.put("taken", broker.takeAll("q"));
    }

    private static void listener(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session writer = Broker.automatic(connection);
        Broker.send(writer, writer.createProducer(broker.queue(writer, "q")), "m", 6);

        Session session = Broker.transacted(connection);
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        consumer.setMessageListener(
                message -> {
                    try {
                        String text = Broker.text(message);
                        boolean first = message.getIntProperty("JMSXDeliveryCount") == 1;
                        if (text.equals("m2") && first) {
                            session.rollback();
                            heard.add("rolled back " + text);
                        } else {
                            session.commit();
                            heard.add("committed " + text);
                        }
                    } catch (Exception error) {
                        heard.add(error.toString());
                    }
                });
        List<String> all = new ArrayList<>();
        for (int i = 0; i < 7; i++) {
            all.add(String.valueOf(heard.poll(Broker.PATIENCE_MS, TimeUnit.MILLISECONDS)));
        }
        connection.close();
        seen.put("heard", all);
        seen.put("left", broker.takeAll("q"));
    }

    private static void connectionLost(Broker broker, Map<String, Object> seen) throws Exception {
        Session writer = Broker.automatic(broker.connect());
        Broker.send(writer, writer.createProducer(broker.queue(writer, "from")), "m", 3);

        Connection connection = broker.connect();
        Session session = Broker.transacted(connection);
        MessageConsumer from = session.createConsumer(broker.queue(session, "from"));
        MessageProducer to = session.createProducer(broker.queue(session, "to"));
        seen.put("received", Broker.receive(from, 2));
        Broker.send(session, to, "uncommitted", 2);
        connection.close();
        seen.put("from", broker.takeAll("from"));
        seen.put("to", broker.takeAll("to"));
    }

    private static void tenThousand(Broker broker, Map<String, Object> seen) throws Exception {
        int transactions = 100;
        int size = 100;
        Connection connection = broker.connect();
        Session session = Broker.transacted(connection);
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        Session reader = Broker.transacted(connection);
        MessageConsumer consumer = reader.createConsumer(broker.queue(reader, "q"));
        List<String> expected = new ArrayList<>();
        for (int i = 0; i < transactions; i++) {
            for (int j = 0; j < size; j++) {
                String text = i + "/" + j;
                producer.send(session.createTextMessage(text));
                expected.add(text);
            }
            session.commit();
        }
        List<String> received = new ArrayList<>();
        for (int i = 0; i < transactions; i++) {
            received.addAll(Broker.receive(consumer, size));
            reader.commit();
        }
        connection.close();
        seen.put("received", received.size());
        seen.put("in_order", received.equals(expected));
        Collections.sort(received);
        Collections.sort(expected);
        seen.put("complete", received.equals(expected));
        seen.put("left", broker.takeAll("q"));
    }

    /** Sessions of one connection that listen to one queue; each message whose number 5 divides is rolled back once. */
    private static void listeners(Broker broker, Map<String, Object> seen) throws Exception {
        int count = 100;
        Connection connection = broker.connect("jms.prefetchPolicy.all=10");
        Session writer = Broker.automatic(connection);
        Broker.send(writer, writer.createProducer(broker.queue(writer, "q")), "", count);
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        for (int i = 0; i < 4; i++) {
            Session session = Broker.transacted(connection);
            session.createConsumer(broker.queue(session, "q"))
                    .setMessageListener(
                            message -> {
                                try {
                                    String text = Broker.text(message);
                                    boolean first = message.getIntProperty("JMSXDeliveryCount") == 1;
                                    if (first && Integer.parseInt(text) % 5 == 0) {
                                        session.rollback();
                                        heard.add("rolled back");
                                    } else {
                                        session.commit();
                                        heard.add(text);
                                    }
                                } catch (Exception error) {
                                    heard.add(error.toString());
                                }
                            });
        }
        int rolledBack = 0;
        List<String> committed = new ArrayList<>();
        for (int i = 0; i < count + count / 5; i++) {
            String text = String.valueOf(heard.poll(Broker.PATIENCE_MS, TimeUnit.MILLISECONDS));
            if (text.equals("rolled back")) {
                rolledBack++;
            } else {
                committed.add(text);
            }
        }
        connection.close();
        seen.put("rolled_back", rolledBack);
        seen.put("committed", committed);
        seen.put("left", broker.takeAll("q"));
    }

    /** 5,000 messages posted in one transaction, retired in one that rolls back, and in one that commits. */
    private static void largeTransaction(Broker broker, Map<String, Object> seen) throws Exception {
        int count = 5000;
        List<String> expected = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            expected.add("m" + i);
        }
        Connection connection = broker.connect();
        Session writer = Broker.transacted(connection);
        MessageProducer producer = writer.createProducer(broker.queue(writer, "q"));
        Broker.send(writer, producer, "rolled back", count);
        writer.rollback();
        Broker.send(writer, producer, "m", count);
        writer.commit();

        Session session = Broker.transacted(connection);
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        seen.put("rolled_back", Broker.receive(consumer, count).equals(expected));
        session.rollback();
        List<String> again = new ArrayList<>();
        int redelivered = 0;
        for (int i = 0; i < count; i++) {
            Message message = Broker.receive(consumer);
            again.add(Broker.text(message));
            redelivered += message.getIntProperty("JMSXDeliveryCount") == 2 ? 1 : 0;
        }
        session.commit();
        connection.close();
        seen.put("committed", again.equals(expected));
        seen.put("redelivered", redelivered);
        seen.put("left", broker.takeAll("q"));
    }

    /** A transaction in each of many sessions of one connection, all open at once; every other one commits. */
    private static void manySessions(Broker broker, Map<String, Object> seen) throws Exception {
        int count = 200;
        Session writer = Broker.automatic(broker.connect());
        Broker.send(writer, writer.createProducer(broker.queue(writer, "from")), "m", count);
        Connection connection = broker.connect("jms.prefetchPolicy.all=0");
        List<Session> sessions = new ArrayList<>();
        List<String> moved = new ArrayList<>();
        List<String> left = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Session session = Broker.transacted(connection);
            sessions.add(session);
            String text = Broker.text(Broker.receive(session.createConsumer(broker.queue(session, "from"))));
            session.createProducer(broker.queue(session, "to")).send(session.createTextMessage(text));
            (i % 2 == 0 ? moved : left).add(text);
        }
        for (int i = 0; i < count; i++) {
            if (i % 2 == 0) {
                sessions.get(i).commit();
            }
        }
        connection.close(); // the others roll back
        seen.put("moved", broker.takeAll("to").equals(moved));
        List<String> from = new ArrayList<>(broker.takeAll("from"));
        Collections.sort(from);
        Collections.sort(left);
        seen.put("left", from.equals(left));
        seen.put("count", from.size());
    }
}
