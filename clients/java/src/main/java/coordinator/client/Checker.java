package coordinator.client;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.exceptions.JMSSecuritySaslException;
import org.apache.qpid.jms.policy.JmsDefaultPrefetchPolicy;

/**
 * Answers the checks of a producer group by Qpid JMS: what became of transactions whose clients are gone.
 *
 * <p>A check is a copy of the first message that the transaction has posted or, if it has posted none, has retired. JMS
 * shows no txn-id: find a key of your own in the message. docs/how-to/answer-checks.md says what to look at before
 * {@link Answer#ROLLBACK}.
 */
public final class Checker implements AutoCloseable {
    /** What became of a transaction. */
    public enum Answer {
        COMMIT(1),
        ROLLBACK(2),
        /** It cannot be told now: the coordinator asks again later. */
        UNKNOWN(3);

        /** Of Qpid JMS: which outcome {@code acknowledge()} is. */
        private final int type;

        Answer(int type) {
            this.type = type;
        }
    }

    /** Your own part. What it throws is logged, and the answer is {@link Answer#UNKNOWN}. */
    @FunctionalInterface
    public interface Answers {
        Answer answer(Message check) throws Exception;
    }

    /** Of Qpid JMS: a session that acknowledges each message by itself, with the outcome that a property names. */
    private static final int INDIVIDUAL_ACKNOWLEDGE = 101;

    private static final String OUTCOME = "JMS_AMQP_ACK_TYPE";
    /** Conditions that are the same again however often the checker attaches; Qpid JMS gives them in the text alone. */
    private static final List<String> FOR_GOOD =
            List.of("amqp:unauthorized-access", "amqp:not-implemented", "amqp:invalid-field", "amqp:not-allowed");

    private static final long FIRST_WAIT_MS = 100;
    private static final long LONGEST_WAIT_MS = 10_000;
    private static final System.Logger LOG = System.getLogger(Checker.class.getName());

    private final JmsConnectionFactory factory;
    private final String group;
    private final Answers answers;
    private final CountDownLatch stopped = new CountDownLatch(1);
    /** Held while a check is answered, and where the connection changes. */
    private final ReentrantLock lock = new ReentrantLock();

    private Connection connection;
    private boolean attached;

    /**
     * @param url of Qpid JMS, such as {@code amqp://localhost:5672?jms.username=shop&jms.password=secret}
     */
    public Checker(String url, String group, Answers answers) {
        this.factory = new JmsConnectionFactory(url);
        this.group = group;
        this.answers = answers;
        // no check waits, counted, behind the one that is being answered
        JmsDefaultPrefetchPolicy prefetch = new JmsDefaultPrefetchPolicy();
        prefetch.setAll(0);
        factory.setPrefetchPolicy(prefetch);
    }

    /**
     * Answers one check after the other until {@link #close}, in the thread that calls it. A connection that is lost is
     * made anew.
     *
     * @throws JMSException the coordinator refuses this checker: it may not log in, or not answer for the group
     */
    public void run() throws JMSException, InterruptedException {
        long wait = FIRST_WAIT_MS;
        while (!isStopped()) {
            attached = false;
            try {
                attend();
            } catch (JMSException lost) {
                if (isForGood(lost)) {
                    throw lost;
                }
                if (!isStopped()) {
                    wait = attached ? FIRST_WAIT_MS : Math.min(2 * wait, LONGEST_WAIT_MS);
                    LOG.log(System.Logger.Level.WARNING, "the checker of " + group + " connects again", lost);
                    stopped.await(wait, TimeUnit.MILLISECONDS);
                }
            } finally {
                closeConnection();
            }
        }
    }

    private static boolean isForGood(JMSException failed) {
        if (failed instanceof JMSSecuritySaslException login && login.isSysTempFailure()) {
            return false;
        }
        String said = String.valueOf(failed.getMessage());
        return failed instanceof JMSSecurityException || FOR_GOOD.stream().anyMatch(said::contains);
    }

    private void attend() throws JMSException {
        Connection made = factory.createConnection(); // it may take long: close() does not wait for it
        lock.lock();
        try {
            connection = made;
        } finally {
            lock.unlock();
        }
        if (isStopped()) {
            return;
        }
        connection.start();
        Session session = connection.createSession(false, INDIVIDUAL_ACKNOWLEDGE);
        MessageConsumer checks = session.createConsumer(session.createQueue("$check/" + group));
        attached = true;
        while (!isStopped()) {
            Message check = checks.receive();
            if (check == null) {
                throw new JMSException("the connection is closed");
            }
            lock.lock();
            try {
                if (!isStopped()) {
                    check.setIntProperty(OUTCOME, answer(check).type);
                    check.acknowledge();
                }
            } finally {
                lock.unlock();
            }
        }
    }

    private Answer answer(Message check) {
        try {
            return answers.answer(check);
        } catch (Exception failed) {
            LOG.log(System.Logger.Level.ERROR, "a check of " + group + " is not answered", failed);
            return Answer.UNKNOWN;
        }
    }

    /**
     * Has {@link #run} end, after the answer that is under way. It may be called in any thread, and by the {@link
     * Answers}: their own answer is sent then, and no further one.
     */
    @Override
    public void close() {
        stopped.countDown();
        if (!lock.isHeldByCurrentThread()) {
            closeConnection();
        }
    }

    private boolean isStopped() {
        return stopped.getCount() == 0;
    }

    private void closeConnection() {
        lock.lock();
        try {
            if (connection != null) {
                connection.close();
            }
        } catch (JMSException lost) {
            LOG.log(System.Logger.Level.DEBUG, "the connection was lost before it was closed", lost);
        } finally {
            connection = null;
            lock.unlock();
        }
    }
}
