package acceptance;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Logs in as the environment says, with the one mechanism that it allows. */
final class LoginCase {
    private LoginCase() {}

    private interface Attempt {
        void run() throws Exception;
    }

    private static Connection connect(Broker broker) throws JMSException {
        String url = broker.url + "?amqp.saslMechanisms=" + System.getenv("LOGIN_MECHANISM");
        JmsConnectionFactory factory = new JmsConnectionFactory(url);
        if (System.getenv("LOGIN_CA") != null) {
            factory.setSslContext(LoginTls.context());
        }
        return factory.createConnection(System.getenv("LOGIN_USER"), System.getenv("LOGIN_PASSWORD"));
    }

    /** What it sees at an address for which its user has no permission. */
    static void permissions(Broker broker, Map<String, Object> seen) throws Exception {
        try (Connection connection = connect(broker)) {
            connection.start();
            Session session = connection.createSession();
            Queue queue = session.createQueue(System.getenv("LOGIN_ADDRESS"));
            seen.put("send", refusal(() -> session.createProducer(queue)));
            seen.put("receive", refusal(() -> session.createConsumer(queue)));
            seen.put("browse", refusal(() -> session.createBrowser(queue).getEnumeration().hasMoreElements()));
            seen.put("create", refusal(session::createTemporaryQueue));
            MessageProducer relay = session.createProducer(null);
            seen.put("relay", refusal(() -> relay.send(queue, session.createTextMessage("x"))));
        }
    }

    private static String refusal(Attempt attempt) throws Exception {
        try {
            attempt.run();
            return "";
        } catch (JMSException refused) {
            return refused.getClass().getSimpleName() + ": " + refused.getMessage();
        }
    }

    /** It posts with a token that expires, hears of its end, and posts with another one. */
    static void renewed(Broker broker, Map<String, Object> seen) throws Exception {
        CompletableFuture<JMSException> ended = new CompletableFuture<>();
        for (String token : System.getenv("LOGIN_TOKENS").split(" ")) {
            JmsConnectionFactory factory = new JmsConnectionFactory(broker.url + "?amqp.saslMechanisms=XOAUTH2");
            try (Connection connection = factory.createConnection(System.getenv("LOGIN_USER"), token)) {
                connection.setExceptionListener(ended::complete);
                connection.start();
                Session session = connection.createSession();
                Queue queue = session.createQueue(System.getenv("LOGIN_ADDRESS"));
                session.createProducer(queue).send(session.createTextMessage("x"));
                JMSException end = ended.get(Broker.PATIENCE_MS, TimeUnit.MILLISECONDS);
                seen.put("ended", end.getClass().getSimpleName() + ": " + end.getMessage());
            }
        }
    }

    static void run(Broker broker, Map<String, Object> seen) throws Exception {
        try (Connection connection = connect(broker)) {
            connection.start();
            seen.put("in", true);
        } catch (JMSException refused) {
            seen.put("refused", refused.getClass().getSimpleName() + ": " + refused.getMessage());
        }
    }
}
