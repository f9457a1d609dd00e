package coordinator.client;

import java.util.UUID;
import org.springframework.jdbc.core.ConnectionCallback;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/**
 * As {@link Sql}, on the connection of Spring's current transaction: in a method that is {@code @Transactional}, or by
 * a {@code TransactionTemplate}, whose manager has the {@code DataSource} of the template. Errors are Spring's {@code
 * DataAccessException}.
 *
 * <p>Outside a transaction, and in one whose manager has another {@code DataSource}, each method throws {@link
 * IllegalTransactionStateException}: what it does would be committed by itself, without your rows.
 */
public final class SpringSql {
    private final JdbcTemplate template;

    public SpringSql(JdbcTemplate template) {
        this.template = template;
    }

    /** As {@link Sql#post}. */
    public void post(Post post) {
        inTransaction(
                connection -> {
                    Sql.post(connection, post);
                    return true;
                });
    }

    /** As {@link Sql#firstTime}. */
    public boolean firstTime(String consumer, String messageId) {
        return inTransaction(connection -> Sql.firstTime(connection, consumer, messageId));
    }

    /** As {@link Sql#discharge}. */
    public boolean discharge(UUID txnId, boolean fail) {
        return inTransaction(connection -> Sql.discharge(connection, txnId, fail));
    }

    private boolean inTransaction(ConnectionCallback<Boolean> call) {
        if (!TransactionSynchronizationManager.isActualTransactionActive()) {
            throw new IllegalTransactionStateException(
                    "there is no transaction: it would be committed without your rows");
        }
        ConnectionCallback<Boolean> checked =
                connection -> {
                    if (connection.getAutoCommit()) {
                        throw new IllegalTransactionStateException(
                                "the transaction is of another DataSource: it would be committed without your rows");
                    }
                    return call.doInConnection(connection);
                };
        return Boolean.TRUE.equals(template.execute(checked));
    }
}
