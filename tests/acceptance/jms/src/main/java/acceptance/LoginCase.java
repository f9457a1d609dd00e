package acceptance;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import java.util.Map;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Logs in as the environment says, with the one mechanism that it allows. */
final class LoginCase {
    private LoginCase() {}

    static void run(Broker broker, Map<String, Object> seen) throws Exception {
        String url = broker.url + "?amqp.saslMechanisms=" + System.getenv("LOGIN_MECHANISM");
        JmsConnectionFactory factory = new JmsConnectionFactory(url);
        try (Connection connection =
                factory.createConnection(System.getenv("LOGIN_USER"), System.getenv("LOGIN_PASSWORD"))) {
            connection.start();
            seen.put("in", true);
        } catch (JMSException refused) {
            seen.put("refused", refused.getClass().getSimpleName() + ": " + refused.getMessage());
        }
    }
}
