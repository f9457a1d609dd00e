package orders;

import coordinator.client.Checker;
import coordinator.client.Checker.Answer;
import jakarta.jms.JMSException;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * An order service that is asked what became of its transactions: best effort one-phase commit, repaired by check-back.
 *
 * <p>The message is posted in a transacted session, and names its producer group: it is durable, and not yet delivered.
 * The row is committed by JDBC, then the session is committed. A crash between the two commits leaves a row whose
 * message waits: the coordinator shows the message to any process of the group, which looks for the order's number in
 * the book.
 *
 * <p>A check may come while the order is still being placed, as when its connection was lost. So the one that finds no
 * order takes its number: the row says {@code refused}, and the order cannot be placed under it any more.
 *
 * <p>Usage: {@code CheckedOrders place COORDINATOR_URL JDBC_URL ORDER [before-commit | after-commit]}, to be killed
 * there, or {@code CheckedOrders answer COORDINATOR_URL JDBC_URL CHECKS}.
 */
public final class CheckedOrders {
    private static final String ADDRESS = "orders-checked-java";
    /** The name that the processes of this service share; each of them can answer for the others. */
    private static final String GROUP = "order-service-java";

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
    private static void answer(String url, String database, int checks)
            throws JMSException, SQLException, InterruptedException {
        AtomicInteger left = new AtomicInteger(checks);
        Checker[] checker = new Checker[1];
        try (Connection book = open(database)) {
            checker[0] =
                    new Checker(
                            url,
                            GROUP,
                            check -> {
                                int order = check.getIntProperty("order");
                                Answer answer = outcomeOf(book, order);
                                System.out.println("order " + order + ": " + answer.name().toLowerCase(Locale.ROOT));
                                if (left.decrementAndGet() == 0) {
                                    checker[0].close();
                                }
                                return answer;
                            });
            checker[0].run();
        }
    }

    /** What became of an order. Where it cannot be told now, the error says so, and the check comes again. */
    private static Answer outcomeOf(Connection book, int order) throws SQLException {
        if (insert(book, order, "refused")) {
            book.commit();
            return Answer.ROLLBACK;
        }
        return state(book, order).equals("placed") ? Answer.COMMIT : Answer.ROLLBACK;
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
