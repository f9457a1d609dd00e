package orders;

import coordinator.client.Commits;
import jakarta.jms.JMSException;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.io.IOException;
import java.io.PrintWriter;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.Random;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * An order service: each order is a row in its own database and a message, by best effort one-phase commit.
 *
 * <p>The message is posted in a transacted session, the row is committed by JDBC, then the session is committed. A
 * crash before the row's commit leaves nothing; one between the two commits leaves a row without its message, which
 * {@code coordinator reconcile --book orders_book.toml} finds by the order's number.
 *
 * <p>Usage: {@code OrderService place COORDINATOR_URL JDBC_URL LAST_ORDER} or {@code OrderService export JDBC_URL
 * FILE}.
 */
public final class OrderService {
    private static final String ADDRESS = "orders-java";

    private OrderService() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 4 && arguments[0].equals("place")) {
            int placed = place(arguments[1], arguments[2], Integer.parseInt(arguments[3]));
            System.out.println("placed " + placed + " orders");
        } else if (arguments.length == 3 && arguments[0].equals("export")) {
            export(arguments[1], Path.of(arguments[2]));
        } else {
            System.err.println("usage: OrderService place COORDINATOR_URL JDBC_URL LAST_ORDER");
            System.err.println("       OrderService export JDBC_URL FILE");
            System.exit(2);
        }
    }

    /** Places orders up to number {@code last}, going on after the last one in the book; how many. */
    private static int place(String url, String database, int last) throws JMSException, SQLException {
        int placed = 0;
        JmsConnectionFactory factory = new JmsConnectionFactory(url);
        // a refused message is known when send() returns, before the row is committed
        factory.setForceSyncSend(true);
        try (Connection rows = open(database);
                PreparedStatement insert =
                        rows.prepareStatement(
                                "insert into orders (id, customer, amount, placed_at) values (?, ?, ?, ?)");
                jakarta.jms.Connection connection = factory.createConnection()) {
            connection.start();
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageProducer producer = session.createProducer(session.createQueue(ADDRESS));
            for (int number = highest(rows) + 1; number <= last; number++) {
                Random random = new Random(number);
                String customer = "customer-" + random.nextInt(500);
                BigDecimal amount = BigDecimal.valueOf(100 + random.nextInt(99_900), 2);
                TextMessage message =
                        session.createTextMessage(
                                "{\"order\": %d, \"customer\": \"%s\", \"amount\": \"%s\"}"
                                        .formatted(number, customer, amount));
                message.setIntProperty("order", number);
                producer.send(message);

                insert.setInt(1, number);
                insert.setString(2, customer);
                insert.setBigDecimal(3, amount);
                insert.setObject(4, OffsetDateTime.ofInstant(Instant.now(), ZoneOffset.UTC));
                insert.executeUpdate();
                rows.commit();
                try {
                    session.commit();
                    placed++;
                } catch (JMSException failed) {
                    System.err.println("order " + number + " is in the book, " + messageAfter(failed));
                }
            }
        }
        return placed;
    }

    /** What became of the message when {@code commit()} failed. */
    static String messageAfter(JMSException failed) {
        return "its message is " + (Commits.isRolledBack(failed) ? "not: " : "in doubt: ") + failed.getMessage();
    }

    private static void export(String database, Path file) throws SQLException, IOException {
        try (Connection rows = open(database);
                Statement statement = rows.createStatement();
                ResultSet row =
                        statement.executeQuery("select id, customer, amount, placed_at from orders order by id");
                PrintWriter csv = new PrintWriter(Files.newBufferedWriter(file))) {
            csv.println("id,customer,amount,placed_at");
            while (row.next()) {
                OffsetDateTime placed = row.getObject(4, OffsetDateTime.class);
                csv.printf("%d,%s,%s,%s%n", row.getInt(1), row.getString(2), row.getBigDecimal(3), placed);
            }
        }
    }

    private static Connection open(String database) throws SQLException {
        Connection rows = DriverManager.getConnection(database);
        rows.setAutoCommit(false);
        try (Statement statement = rows.createStatement()) {
            statement.execute(
                    "create table if not exists orders (id int primary key, customer varchar(100) not null,"
                            + " amount decimal(10, 2) not null, placed_at timestamp with time zone not null)");
        }
        rows.commit();
        return rows;
    }

    private static int highest(Connection rows) throws SQLException {
        try (Statement statement = rows.createStatement();
                ResultSet row = statement.executeQuery("select coalesce(max(id), 0) from orders")) {
            row.next();
            return row.getInt(1);
        }
    }
}
