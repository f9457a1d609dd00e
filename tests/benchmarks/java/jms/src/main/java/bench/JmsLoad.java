package bench;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.stream.Stream;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * A load as applications on Qpid JMS make it: each connection is a thread with one session in a transaction, which
 * posts (mode post), or receives and posts (transfer), and commits.
 */
public final class JmsLoad {
    public static void main(String[] arguments) throws Exception {
        Load load = new Load(arguments);
        JmsConnectionFactory factory =
                new JmsConnectionFactory("amqp://127.0.0.1:" + load.flag("port", null) + "?jms.prefetchPolicy.all=1000");
        load.run(Stream.generate(() -> new Worker(load, factory)).limit(load.number("connections", 1)).toList());
    }

    private static final class Worker extends Load.Worker {
        private final boolean transfers;
        private final JmsConnectionFactory factory;
        private final String queue;
        private final String target;
        private final int transaction;
        private final String text;

        Worker(Load load, JmsConnectionFactory factory) {
            super(load);
            this.factory = factory;
            transfers = load.mode.equals("transfer");
            queue = load.flag("queue", "A");
            target = load.flag("target", "B");
            transaction = load.number("transaction", 1);
            text = "x".repeat(load.number("body", 256));
        }

        @Override
        protected void work() throws JMSException {
            try (Connection connection = factory.createConnection()) {
                connection.start();
                Session session = connection.createSession(Session.SESSION_TRANSACTED);
                MessageProducer producer = session.createProducer(session.createQueue(target));
                producer.setDeliveryMode(DeliveryMode.PERSISTENT);
                MessageConsumer consumer = transfers ? session.createConsumer(session.createQueue(queue)) : null;
                ready();
                for (long number = 0; goesOn(); number++) {
                    transact(session, producer, consumer, number);
                }
            }
        }

        private void transact(Session session, MessageProducer producer, MessageConsumer consumer, long number) throws JMSException {
            for (int each = 0; each < transaction; each++) {
                if (consumer != null && consumer.receive(15_000) == null) {
                    throw new JMSException("nothing came for 15 s");
                }
                TextMessage message = session.createTextMessage(text);
                message.setStringProperty("order", "order-" + number);
                message.setIntProperty("position", each);
                producer.send(message);
            }
            long before = System.nanoTime();
            session.commit();
            committed(transaction, before);
        }
    }
}
