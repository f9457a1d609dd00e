package orders;

import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.policy.JmsDefaultPrefetchPolicy;

/**
 * An order service that is asked what became of its transactions: best effort one-phase commit, repaired by check-back.
 *
 * <p>The message is posted in a transacted session, and names its producer group: it is durable, and not yet delivered. The
 * row is committed by JDBC, then the session is committed. A crash between the two commits leaves a row whose message
 * waits: the coordinator shows the message to any process of the group, which looks for the order's number in the book.
 *
 * <p>A check may come while the order is still being placed, as when its connection was lost. So the one that finds no
 * order takes its number: the row says {@code refused}, and the order cannot be placed under it any more.
 *
 * <p>Usage: {@code CheckedOrders place COORDINATOR_URL JDBC_URL ORDER [before-commit | after-commit]}, to be killed there, or
 * {@code CheckedOrders answer COORDINATOR_URL JDBC_URL CHECKS}.
 */
public final class CheckedOrders {
    private static final String ADDRESS = "orders-checked-java";
    /** The name that the processes of this service share; each of them can answer for the others. */
    private static final String GROUP = "order-service-java";

    /** Of Qpid JMS: a session in which each message is acknowledged by itself, with the outcome that a property names. */
    private static final int INDIVIDUAL_ACKNOWLEDGE = 101;

    private static final String OUTCOME = "JMS_AMQP_ACK_TYPE";
    private static final int ACCEPTED = 1;
    private static final int REJECTED = 2;
    private static final int RELEASED = 3;

    /** SQLSTATE of a key that is there already. */
    private static final String UNIQUE_VIOLATION = "23505";

    private CheckedOrders() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length >= 4 && arguments[0].equals("place")) {
            String hold = arguments.length > 4 ? arguments[4] : "";
            place(arguments[1], arguments[2], Integer.parseInt(arguments[3]), hold);
        } else if (arguments.length == 4 && arguments[0].equals("answer")) {
            answer(arguments[1], arguments[2], Integer.parseInt(arguments[3]));
        } else {
            System.err.println(
                    "usage: CheckedOrders place COORDINATOR_URL JDBC_URL ORDER [before-commit | after-commit]");
            System.err.println("       CheckedOrders answer COORDINATOR_URL JDBC_URL CHECKS");
            System.exit(2);
        }
    }

    private static void place(String url, String database, int order, String hold)
            throws JMSException, SQLException, InterruptedException {
        JmsConnectionFactory factory = new JmsConnectionFactory(url);
        // a message that is sent is durable when send() returns
        factory.setForceSyncSend(true);
        // "producer-group" is no identifier of Java
        factory.setValidatePropertyNames(false);
        try (Connection book = open(database);
                jakarta.jms.Connection connection = factory.createConnection()) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            TextMessage message = session.createTextMessage("{\"order\": %d}".formatted(order));
            message.setStringProperty("producer-group", GROUP);
            message.setIntProperty("order", order);
            session.createProducer(session.createQueue(ADDRESS)).send(message);

            if (!insert(book, order, "placed")) {
                session.rollback();
                System.out.println("order " + order + " is in the book already: " + state(book, order));
                return;
            }
            holdAt("before-commit", hold);
            book.commit();
            holdAt("after-commit", hold);
            try {
                session.commit();
                System.out.println("placed order " + order);
            } catch (JMSException failed) {
                System.err.println("order " + order + " is in the book, " + OrderService.messageAfter(failed));
            }
        }
    }

    private static void holdAt(String point, String hold) throws InterruptedException {
        if (hold.equals(point)) {
            System.out.println("holding");
            Thread.sleep(Long.MAX_VALUE);
        }
    }

    /** Answers so many checks. */
    private static void answer(String url, String database, int checks) throws JMSException, SQLException {
        JmsConnectionFactory factory = new JmsConnectionFactory(url);
        // no check waits in this process for one before it
        JmsDefaultPrefetchPolicy prefetch = new JmsDefaultPrefetchPolicy();
        prefetch.setAll(0);
        factory.setPrefetchPolicy(prefetch);
        try (Connection book = open(database);
                jakarta.jms.Connection connection = factory.createConnection()) {
            connection.start();
            Session session = connection.createSession(false, INDIVIDUAL_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue("$check/" + GROUP));
            for (int answered = 0; answered < checks; answered++) {
                Message check = consumer.receive();
                int order = check.getIntProperty("order");
                int outcome = outcomeOf(book, order);
                check.setIntProperty(OUTCOME, outcome);
                check.acknowledge();
                String said = outcome == ACCEPTED ? "committed" : outcome == REJECTED ? "rolled back" : "unknown";
                System.out.println("order " + order + ": " + said);
            }
        }
    }

    /** What became of an order; {@code RELEASED}: it cannot be told now, and the check comes again. */
    private static int outcomeOf(Connection book, int order) {
        try {
            if (insert(book, order, "refused")) {
                book.commit();
                return REJECTED;
            }
            return state(book, order).equals("placed") ? ACCEPTED : REJECTED;
        } catch (SQLException error) {
            System.err.println("order " + order + " cannot be looked up: " + error.getMessage());
            return RELEASED;
        }
    }

    /** Whether there was no row of that number before. */
    private static boolean insert(Connection book, int order, String state) throws SQLException {
        try (PreparedStatement insert = book.prepareStatement("insert into checked_orders (id, state) values (?, ?)")) {
            insert.setInt(1, order);
            insert.setString(2, state);
            insert.executeUpdate();
            return true;
        } catch (SQLException error) {
            book.rollback();
            if (UNIQUE_VIOLATION.equals(error.getSQLState())) {
                return false;
            }
            throw error;
        }
    }

    private static String state(Connection book, int order) throws SQLException {
        try (PreparedStatement select = book.prepareStatement("select state from checked_orders where id = ?")) {
            select.setInt(1, order);
            try (ResultSet row = select.executeQuery()) {
                row.next();
                return row.getString(1);
            }
        } finally {
            book.rollback();
        }
    }

    private static Connection open(String database) throws SQLException {
        Connection book = DriverManager.getConnection(database);
        book.setAutoCommit(false);
        try (Statement statement = book.createStatement()) {
            statement.execute(
                    "create table if not exists checked_orders (id int primary key, state varchar(7) not null)");
        }
        book.commit();
        return book;
    }
}
