package coordinator.client;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Optional;
import java.util.UUID;

/**
 * What an application calls in its own SQL transaction, on a connection to the PostgreSQL of the store.
 *
 * <p>Each method runs one statement and commits nothing. What the database refuses comes as an {@link SQLException}
 * with the SQLSTATE that docs/how-to/post-from-sql.md and docs/how-to/discharge-from-sql.md explain.
 */
public final class Sql {
    private static final String POST =
            "select %s(?, ?::%s, ?::jsonb, ?::jsonb, ?, ?::float8 * interval '1 ms', ?::timestamptz,"
                    + " ?::float8 * interval '1 ms', ?::int4)";
    private static final String FIRST_TIME = "select coordinator.first_time(?, ?)";
    private static final String DISCHARGE = "select coordinator.discharge(?, ?)";
    private static final String OUTCOME = "select outcome from coordinator.outcome where txn_id = ?";

    private Sql() {}

    /** The message, or each of many, is delivered when, and only if, the transaction commits. */
    public static void post(Connection connection, Post post) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(POST.formatted(post.function(), post.type()))) {
            Object[] values = post.values();
            for (int index = 0; index < values.length; index++) {
                statement.setObject(index + 1, values[index]);
            }
            statement.execute();
        }
    }

    /**
     * Whether no committed transaction has asked the same before: where it is, do the work of the message in this
     * transaction. Acknowledge the message after the commit, either way.
     *
     * @param consumer a name of your own for what does the work; that of its consumer group, and reconciliation knows
     *        it
     */
    public static boolean firstTime(Connection connection, String consumer, String messageId) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(FIRST_TIME)) {
            statement.setString(1, consumer);
            statement.setString(2, messageId);
            return isTrue(statement);
        }
    }

    /**
     * The commit of the transaction decides a checkable AMQP transaction, too. JMS shows no txn-id: this is for clients
     * of AMQP that do.
     *
     * @param fail it is rolled back
     * @return false: it was decided so before
     */
    public static boolean discharge(Connection connection, UUID txnId, boolean fail) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(DISCHARGE)) {
            statement.setObject(1, txnId);
            statement.setBoolean(2, fail);
            return isTrue(statement);
        }
    }

    /**
     * What became of an AMQP transaction: {@code commit}, {@code rollback} or {@code undecided}; empty: the store has
     * nothing of it.
     */
    public static Optional<String> outcome(Connection connection, UUID txnId) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(OUTCOME)) {
            statement.setObject(1, txnId);
            try (ResultSet row = statement.executeQuery()) {
                return row.next() ? Optional.of(row.getString(1)) : Optional.empty();
            }
        }
    }

    private static boolean isTrue(PreparedStatement statement) throws SQLException {
        try (ResultSet row = statement.executeQuery()) {
            row.next();
            return row.getBoolean(1);
        }
    }
}
