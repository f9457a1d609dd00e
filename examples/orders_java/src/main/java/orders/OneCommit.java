package orders;

import coordinator.client.Post;
import coordinator.client.Sql;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * An order service and its consumer in the PostgreSQL of the store, with plain JDBC: one commit for a row and its
 * message.
 *
 * <p>{@code place} inserts an order and posts in one JDBC transaction: no crash comes between, and no JMS is needed.
 * {@code ship} takes the messages with Qpid JMS; {@code coordinator.first_time}, the shipment and a message that
 * follows from it are one JDBC transaction, and the acknowledgement comes after it: a message that comes again does no
 * work twice.
 *
 * <p>Usage: {@code OneCommit place JDBC_URL LAST_ORDER [ORDER]}, which waits before the commit of ORDER to be killed,
 * or {@code OneCommit ship COORDINATOR_URL JDBC_URL MESSAGES [ORDER]}, which waits after the commit of its shipment.
 */
public final class OneCommit {
    static final String ORDERS = "orders-one-commit-java";
    static final String PARCELS = "parcels-java";

    /** Whose work {@code first_time} remembers. */
    static final String CONSUMER = "shipping-java";

    private OneCommit() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length >= 3 && arguments[0].equals("place")) {
            place(arguments[1], Integer.parseInt(arguments[2]), held(arguments, 3));
        } else if (arguments.length >= 4 && arguments[0].equals("ship")) {
            ship(arguments[1], arguments[2], Integer.parseInt(arguments[3]), held(arguments, 4));
        } else {
            System.err.println("usage: OneCommit place JDBC_URL LAST_ORDER [ORDER]");
            System.err.println("       OneCommit ship COORDINATOR_URL JDBC_URL MESSAGES [ORDER]");
            System.exit(2);
        }
    }

    static int held(String[] arguments, int at) {
        return arguments.length > at ? Integer.parseInt(arguments[at]) : 0;
    }

    /** Places orders up to number {@code last}, going on after the last one in the book. */
    private static void place(String database, int last, int held) throws SQLException, InterruptedException {
        try (Connection book = open(database);
                PreparedStatement insert = book.prepareStatement("insert into shop_java.orders (id) values (?)")) {
            for (int number = highest(book) + 1; number <= last; number++) {
                insert.setInt(1, number);
                insert.executeUpdate();
                Sql.post(book, order(number));
                holdAt(number, held);
                book.commit();
            }
        }
        System.out.println("placed up to order " + last);
    }

    /** Takes so many messages. */
    private static void ship(String url, String database, int messages, int held)
            throws JMSException, SQLException, InterruptedException {
        try (Connection book = open(database);
                PreparedStatement insert =
                        book.prepareStatement("insert into shop_java.shipments (order_id) values (?)");
                jakarta.jms.Connection connection = new JmsConnectionFactory(url).createConnection()) {
            connection.start();
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue(ORDERS));
            for (int taken = 0; taken < messages; taken++) {
                Message message = consumer.receive();
                int number = numberIn(message);
                if (Sql.firstTime(book, CONSUMER, message.getJMSMessageID())) {
                    insert.setInt(1, number);
                    insert.executeUpdate();
                    Sql.post(book, parcel(number));
                } else {
                    System.out.println("again order " + number);
                }
                book.commit();
                holdAt(number, held);
                message.acknowledge();
            }
        }
        System.out.println("took " + messages + " messages");
    }

    /** What was posted as {@code jsonb} has the content-type application/json: Qpid JMS makes a text message of it. */
    static int numberIn(Message message) throws JMSException {
        return Integer.parseInt(message.getBody(String.class).replaceAll("\\D", ""));
    }

    static Post order(int number) {
        return Post.json(ORDERS, "{\"order\": %d}".formatted(number)).messageId("order-" + number);
    }

    static Post parcel(int number) {
        return Post.json(PARCELS, "{\"order\": %d}".formatted(number)).messageId("parcel-" + number);
    }

    static void holdAt(int number, int held) throws InterruptedException {
        if (number == held) {
            System.out.println("holding");
            Thread.sleep(Long.MAX_VALUE);
        }
    }

    private static Connection open(String database) throws SQLException {
        Connection book = DriverManager.getConnection(database);
        book.setAutoCommit(false);
        try (Statement statement = book.createStatement()) {
            statement.execute("create schema if not exists shop_java");
            statement.execute("create table if not exists shop_java.orders (id int primary key)");
            // no key forbids a second shipment: that there is none is the work of first_time alone
            statement.execute("create table if not exists shop_java.shipments (order_id int not null)");
        }
        book.commit();
        return book;
    }

    private static int highest(Connection book) throws SQLException {
        try (Statement statement = book.createStatement();
                ResultSet row = statement.executeQuery("select coalesce(max(id), 0) from shop_java.orders")) {
            row.next();
            return row.getInt(1);
        }
    }
}
