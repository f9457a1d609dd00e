package acceptance;

import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Sending and receiving without a transaction: acknowledgement, credit, who gets what, how long it lives. */
final class DeliveryCases {
    private DeliveryCases() {}

    static Map<String, Driver.Case> all() {
        return Map.ofEntries(
                Map.entry("acknowledgement", DeliveryCases::acknowledgement),
                Map.entry("client-acknowledge", DeliveryCases::clientAcknowledge),
                Map.entry("recover", DeliveryCases::recover),
                Map.entry("asynchronous-sends", DeliveryCases::asynchronousSends),
                Map.entry("competing-consumers", DeliveryCases::competingConsumers),
                Map.entry("temporary-queue", DeliveryCases::temporaryQueue),
                Map.entry("time-to-live", DeliveryCases::timeToLive),
                Map.entry("later", DeliveryCases::later),
                Map.entry("no-prefetch", DeliveryCases::noPrefetch),
                Map.entry("not-allowed", DeliveryCases::notAllowed),
                Map.entry("many-closes", DeliveryCases::manyCloses),
                Map.entry("dead-letters", DeliveryCases::deadLetters),
                Map.entry("expired-letters", DeliveryCases::expiredLetters));
    }

    /** A job that begins, takes one message, and closes, more often than a delivery may fail: it prefetches all others. */
    private static void manyCloses(Broker broker, Map<String, Object> seen) throws Exception {
        int runs = 20;
        Session writer = Broker.automatic(broker.connect());
        Broker.send(writer, writer.createProducer(broker.queue(writer, "q")), "m", runs + 5);
        for (boolean transacted : new boolean[] {false, true}) {
            List<String> received = new ArrayList<>();
            TreeSet<Integer> counts = new TreeSet<>();
            for (int i = 0; i < runs / 2; i++) {
                Connection connection = broker.connect();
                Session session = transacted ? Broker.transacted(connection) : Broker.automatic(connection);
                Message message = Broker.receive(session.createConsumer(broker.queue(session, "q")));
                received.add(Broker.text(message));
                counts.add(message.getIntProperty("JMSXDeliveryCount"));
                if (transacted) {
                    session.commit();
                }
                connection.close();
            }
            seen.put(transacted ? "in_transactions" : "received", received);
            seen.put(transacted ? "counts_in_transactions" : "counts", new ArrayList<>(counts));
        }
        List<Integer> uncommitted = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            Connection connection = broker.connect();
            Session session = Broker.transacted(connection);
            Message message = Broker.receive(session.createConsumer(broker.queue(session, "q")));
            uncommitted.add(message.getIntProperty("JMSXDeliveryCount"));
            session.close();
            connection.close();
        }
        seen.put("uncommitted", uncommitted);
        seen.put("left", broker.takeAll("q"));
    }

    /** Qpid JMS says by a property which outcome an acknowledgement is. */
    private static void deadLetters(Broker broker, Map<String, Object> seen) throws Exception {
        int rejected = 2;
        Connection connection = broker.connect();
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Broker.send(session, session.createProducer(broker.queue(session, "q")), "bad", 1);
        Message bad = Broker.receive(session.createConsumer(broker.queue(session, "q")));
        bad.setIntProperty("JMS_AMQP_ACK_TYPE", rejected);
        bad.acknowledge();
        Session other = Broker.automatic(connection);
        Message letter = Broker.receive(other.createConsumer(other.createQueue("%DLQ%" + broker.address("q"))));
        seen.put("letter", Broker.text(letter));
        connection.close(); // its consumer would have the mark
        seen.put("left", broker.takeAll("q"));
    }

    /** The client drops what has expired, letters and what is replayed of them, too, unless it is told not to. */
    private static void expiredLetters(Broker broker, Map<String, Object> seen) throws Exception {
        String letters = "%DLQ%" + broker.address("q");
        Connection patient = broker.connect("jms.localMessageExpiry=false", "jms.prefetchPolicy.all=0");
        Session session = Broker.transacted(patient);
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        producer.setTimeToLive(1);
        producer.send(session.createTextMessage("late"));
        session.commit();
        Session asking = Broker.automatic(patient);
        seen.put("delivered", asking.createConsumer(broker.queue(asking, "q")).receive(100) != null);
        MessageConsumer consumer = session.createConsumer(session.createQueue(letters));
        seen.put("letter", Broker.text(Broker.receive(consumer)));
        session.rollback();
        consumer.close();
        Session hasty = Broker.automatic(broker.connect());
        MessageConsumer dropping = hasty.createConsumer(hasty.createQueue(letters));
        seen.put("dropped", dropping.receive(1000) == null);
        dropping.close();
        Driver.step("replay");
        seen.put("replayed", Broker.text(Broker.receive(session.createConsumer(broker.queue(session, "q")))));
        session.commit();
    }

    /** By priority, and no sooner than they are to be delivered; in a transaction too. */
    private static void later(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session session = Broker.transacted(connection);
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        for (int priority : new int[] {4, 0, 9, 4, 6}) {
            producer.setPriority(priority);
            producer.send(session.createTextMessage("p" + priority));
        }
        producer.setPriority(9);
        producer.setDeliveryDelay(700);
        Message delayed = session.createTextMessage("later");
        producer.send(delayed);
        producer.setDeliveryDelay(100);
        producer.setTimeToLive(50); // from now on, not from when it could be delivered
        producer.send(session.createTextMessage("too late"));
        session.commit();
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        seen.put("at_once", Broker.receive(consumer, 5));
        seen.put("browsed", broker.browse("q"));
        Message received = Broker.receive(consumer);
        seen.put("later", Broker.text(received));
        seen.put("in_time", System.currentTimeMillis() >= delayed.getJMSDeliveryTime());
        seen.put("delivery_time_kept", received.getJMSDeliveryTime() == delayed.getJMSDeliveryTime());
        session.commit();
        connection.close();
        seen.put("left", broker.takeAll("q"));
    }

    private static void acknowledgement(Broker broker, Map<String, Object> seen) throws Exception {
        for (Map.Entry<String, Integer> mode :
                Map.of("auto", Session.AUTO_ACKNOWLEDGE, "dups_ok", Session.DUPS_OK_ACKNOWLEDGE).entrySet()) {
            Connection connection = broker.connect();
            Session session = connection.createSession(false, mode.getValue());
            MessageProducer producer = session.createProducer(broker.queue(session, mode.getKey()));
            Broker.send(session, producer, "m", 10);
            MessageConsumer consumer = session.createConsumer(broker.queue(session, mode.getKey()));
            seen.put(mode.getKey(), Broker.receive(consumer, 7));
            consumer.close();
            connection.close();
            seen.put(mode.getKey() + "_left", broker.takeAll(mode.getKey()));
        }
    }

    private static void clientAcknowledge(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Broker.send(session, session.createProducer(broker.queue(session, "q")), "m", 6);
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        Broker.receive(consumer);
        Broker.receive(consumer).acknowledge(); // both
        Broker.receive(consumer, 2);
        session.recover();
        Message again = Broker.receive(consumer);
        seen.put("after_recover", Broker.text(again));
        seen.put("redelivered", again.getJMSRedelivered());
        seen.put("delivery_count", again.getIntProperty("JMSXDeliveryCount"));
        again.acknowledge();
        Broker.receive(consumer); // never acknowledged
        connection.close();
        seen.put("left", broker.takeAll("q"));
    }

    /** Three received of six and recovered, twice; then all acknowledged by the last. */
    private static void recover(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
        Broker.send(session, session.createProducer(broker.queue(session, "q")), "m", 6);
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        for (int round = 0; round < 2; round++) {
            Broker.receive(consumer, 3);
            session.recover();
        }
        List<String> texts = new ArrayList<>();
        List<Integer> counts = new ArrayList<>();
        Message message = null;
        for (int i = 0; i < 6; i++) {
            message = Broker.receive(consumer);
            texts.add(Broker.text(message));
            counts.add(message.getIntProperty("JMSXDeliveryCount"));
        }
        message.acknowledge();
        connection.close();
        seen.put("received", texts);
        seen.put("delivery_counts", counts);
        seen.put("left", broker.takeAll("q"));
    }

    private static void asynchronousSends(Broker broker, Map<String, Object> seen) throws Exception {
        int count = 500;
        Session session = Broker.automatic(broker.connect("jms.forceAsyncSend=true"));
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        BlockingQueue<String> completed = new LinkedBlockingQueue<>();
        CompletionListener listener =
                new CompletionListener() {
                    @Override
                    public void onCompletion(Message message) {
                        try {
                            completed.add(Broker.text(message));
                        } catch (JMSException error) {
                            completed.add(error.toString());
                        }
                    }

                    @Override
                    public void onException(Message message, Exception error) {
                        completed.add(error.toString());
                    }
                };
        List<String> sent = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            sent.add("m" + i);
            producer.send(session.createTextMessage("m" + i), listener);
        }
        List<String> answered = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            answered.add(String.valueOf(completed.poll(Broker.PATIENCE_MS, TimeUnit.MILLISECONDS)));
        }
        seen.put("completed_in_order", answered.equals(sent));
        seen.put("received_in_order", broker.takeAll("q").equals(sent));
    }

    private static void competingConsumers(Broker broker, Map<String, Object> seen) throws Exception {
        int count = 200;
        Session writer = Broker.automatic(broker.connect());
        Broker.send(writer, writer.createProducer(broker.queue(writer, "q")), "m", count);
        List<MessageConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            Session session = Broker.automatic(broker.connect("jms.prefetchPolicy.all=1"));
            consumers.add(session.createConsumer(broker.queue(session, "q")));
        }
        // with a credit of one each, none can take all: each has at least its first
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        for (MessageConsumer consumer : consumers) {
            heard.add(Broker.text(Broker.receive(consumer)));
        }
        for (MessageConsumer consumer : consumers) {
            consumer.setMessageListener(
                    message -> {
                        try {
                            heard.add(Broker.text(message));
                        } catch (JMSException error) {
                            heard.add(error.toString());
                        }
                    });
        }
        List<String> received = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            received.add(String.valueOf(heard.poll(Broker.PATIENCE_MS, TimeUnit.MILLISECONDS)));
        }
        seen.put("received", received.size());
        seen.put("distinct", new TreeSet<>(received).size());
        for (MessageConsumer consumer : consumers) {
            consumer.close();
        }
        seen.put("left", broker.takeAll("q"));
    }

    private static void temporaryQueue(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session session = Broker.automatic(connection);
        TemporaryQueue replies = session.createTemporaryQueue();
        MessageConsumer replyConsumer = session.createConsumer(replies);
        Message request = session.createTextMessage("question");
        request.setJMSReplyTo(replies);
        request.setJMSCorrelationID("42");
        session.createProducer(broker.queue(session, "requests")).send(request);

        Session server = Broker.transacted(broker.connect());
        Message asked = Broker.receive(server.createConsumer(broker.queue(server, "requests")));
        Message reply = server.createTextMessage("answer to " + Broker.text(asked));
        reply.setJMSCorrelationID(asked.getJMSCorrelationID());
        server.createProducer(asked.getJMSReplyTo()).send(reply);
        server.commit();

        Message answered = Broker.receive(replyConsumer);
        seen.put("reply", Broker.text(answered));
        seen.put("correlation_id", answered.getJMSCorrelationID());
        String name = replies.getQueueName();
        replyConsumer.close();
        replies.delete();
        seen.put("address", name);
    }

    private static void timeToLive(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect("jms.localMessageExpiry=false");
        Session session = Broker.automatic(connection);
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        producer.send(session.createTextMessage("stays"));
        producer.setTimeToLive(100);
        Message mortal = session.createTextMessage("expires");
        producer.send(mortal);
        producer.setTimeToLive(3_600_000);
        producer.send(session.createTextMessage("long"));
        while (System.currentTimeMillis() <= mortal.getJMSExpiration() + 100) {
            Thread.sleep(20);
        }
        seen.put("received", broker.takeAll("q"));
    }

    private static void noPrefetch(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect("jms.prefetchPolicy.all=0");
        Session session = Broker.automatic(connection);
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        seen.put("empty_no_wait", consumer.receiveNoWait() == null);
        seen.put("empty_timeout", consumer.receive(200) == null);
        Broker.send(session, session.createProducer(broker.queue(session, "q")), "m", 3);
        List<String> texts = new ArrayList<>();
        texts.add(Broker.text(consumer.receiveNoWait()));
        texts.add(Broker.text(Broker.receive(consumer)));
        seen.put("received", texts);
        // nothing was fetched ahead: another consumer gets the third
        Session other = Broker.automatic(broker.connect("jms.prefetchPolicy.all=0"));
        seen.put("other", Broker.text(Broker.receive(other.createConsumer(broker.queue(other, "q")))));
        seen.put("empty_again", consumer.receiveNoWait() == null);
        connection.close();
    }

    /** Against a service that makes no addresses of itself. */
    private static void notAllowed(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session session = Broker.automatic(connection);
        seen.put("producer", thrown(() -> session.createProducer(broker.queue(session, "nowhere"))));
        seen.put("consumer", thrown(() -> session.createConsumer(broker.queue(session, "nowhere"))));
        MessageProducer anywhere = session.createProducer(null);
        seen.put(
                "anonymous",
                thrown(() -> anywhere.send(broker.queue(session, "nowhere"), session.createTextMessage("lost"))));
        Session transacted = Broker.transacted(connection);
        MessageProducer producer = transacted.createProducer(null);
        seen.put(
                "in_transaction",
                thrown(
                        () -> {
                            producer.send(session.createQueue("known"), transacted.createTextMessage("rolled back"));
                            producer.send(broker.queue(session, "nowhere"), transacted.createTextMessage("lost"));
                            transacted.commit();
                        }));
        transacted.rollback();
        // the connection lives on
        anywhere.send(session.createQueue("known"), session.createTextMessage("arrives"));
        MessageConsumer consumer = session.createConsumer(session.createQueue("known"));
        seen.put("known", Broker.receiveUpTo(consumer, "arrives"));
    }

    private interface Action {
        void run() throws JMSException;
    }

    private static List<String> thrown(Action action) {
        try {
            action.run();
            return Collections.emptyList();
        } catch (JMSException error) {
            return List.of(error.getClass().getSimpleName(), String.valueOf(error.getMessage()));
        }
    }
}
