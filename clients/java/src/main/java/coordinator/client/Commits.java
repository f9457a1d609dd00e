package coordinator.client;

import jakarta.jms.JMSException;

/** What became of a transacted session whose {@code commit()} has failed. */
public final class Commits {
    private Commits() {}

    /**
     * Whether it was rolled back for certain; else it is in doubt. Qpid JMS gives what the coordinator has answered in
     * the text alone: its {@code TransactionRolledBackException} may be a doubt, and its in-doubt exception a certain
     * rollback.
     */
    public static boolean isRolledBack(JMSException failed) {
        String said = String.valueOf(failed.getMessage());
        return said.endsWith("[condition = amqp:transaction:rollback]")
                || said.endsWith("[condition = amqp:transaction:timeout]");
    }
}
