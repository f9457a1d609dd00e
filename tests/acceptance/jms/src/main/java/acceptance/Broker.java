package acceptance;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.List;
import org.apache.qpid.jms.JmsConnectionFactory;

/** The service under test as one case sees it: connections that end with the case, queues of its own, texts. */
final class Broker implements AutoCloseable {
    /** For what must arrive: far above anything seen, so that a loaded machine fails nothing. */
    static final long PATIENCE_MS = 60_000;

    final String url;
    private final String prefix;
    private final List<Connection> connections = new ArrayList<>();

    Broker(String url, String prefix) {
        this.url = url;
        this.prefix = prefix;
    }

    /** The name of a queue that no other case uses. */
    String address(String name) {
        return prefix + "." + name;
    }

    /** A started connection; {@code options} are Qpid JMS's own, as {@code jms.prefetchPolicy.all=0}. */
    Connection connect(String... options) throws JMSException {
        return connectTo(url + (options.length == 0 ? "" : "?" + String.join("&", options)));
    }

    /** As {@link #connect}, with a client id of this case's own, which durable subscriptions belong to. */
    Connection connectAs(String client, String... options) throws JMSException {
        List<String> all = new ArrayList<>(List.of(options));
        all.add("jms.clientID=" + prefix + "-" + client.replace(' ', '-'));
        return connect(all.toArray(String[]::new));
    }

    /** A started connection that finds its way back when the service is gone for a while. */
    Connection reconnecting(String... options) throws JMSException {
        return connectTo(
                "failover:(" + url + ")?failover.initialReconnectDelay=20&failover.reconnectDelay=50"
                        + "&failover.useReconnectBackOff=false&failover.maxReconnectAttempts=-1"
                        + (options.length == 0 ? "" : "&" + String.join("&", options)));
    }

    private Connection connectTo(String uri) throws JMSException {
        Connection connection = new JmsConnectionFactory(uri).createConnection();
        connections.add(connection);
        connection.start();
        return connection;
    }

    static Session transacted(Connection connection) throws JMSException {
        return connection.createSession(true, Session.SESSION_TRANSACTED);
    }

    static Session automatic(Connection connection) throws JMSException {
        return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    Queue queue(Session session, String name) throws JMSException {
        return session.createQueue(address(name));
    }

    /** Sends {@code stem}0 … {@code stem}(count-1). */
    static void send(Session session, MessageProducer producer, String stem, int count) throws JMSException {
        for (int i = 0; i < count; i++) {
            producer.send(session.createTextMessage(stem + i));
        }
    }

    /** Sends one text outside any transaction: what a consumer sees before it, was visible before it. */
    void mark(String name, String text) throws JMSException {
        Session session = automatic(connect());
        session.createProducer(queue(session, name)).send(session.createTextMessage(text));
    }

    /** Receives up to and with the text {@code last}. */
    static List<String> receiveUpTo(MessageConsumer consumer, String last) throws JMSException {
        List<String> texts = new ArrayList<>();
        String text;
        do {
            text = text(receive(consumer));
            texts.add(text);
        } while (!text.equals(last));
        return texts;
    }

    static List<String> receive(MessageConsumer consumer, int count) throws JMSException {
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            texts.add(text(receive(consumer)));
        }
        return texts;
    }

    static Message receive(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(PATIENCE_MS);
        if (message == null) {
            throw new IllegalStateException("no message came in " + PATIENCE_MS + " ms");
        }
        return message;
    }

    static String text(Message message) throws JMSException {
        return ((TextMessage) message).getText();
    }

    /** What a browser shows now. */
    List<String> browse(String name) throws JMSException {
        Session session = automatic(connect());
        try (QueueBrowser browser = session.createBrowser(queue(session, name))) {
            List<String> texts = new ArrayList<>();
            for (Enumeration<?> each = browser.getEnumeration(); each.hasMoreElements(); ) {
                texts.add(text((Message) each.nextElement()));
            }
            return texts;
        } finally {
            session.close();
        }
    }

    /** Everything left in a queue: a mark is sent behind it and all before the mark is taken. */
    List<String> takeAll(String name) throws JMSException {
        mark(name, "end");
        Connection connection = connect();
        Session session = automatic(connection);
        List<String> texts;
        try (MessageConsumer consumer = session.createConsumer(queue(session, name))) {
            texts = receiveUpTo(consumer, "end");
        }
        connection.close();
        return texts.subList(0, texts.size() - 1);
    }

    @Override
    public void close() throws JMSException {
        for (Connection connection : connections) {
            connection.close();
        }
    }
}
