package orders;

import coordinator.client.SpringSql;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.transaction.support.TransactionTemplate;

/**
 * As {@link OneCommit}, on the same tables, with Spring's {@code JdbcTemplate}: what is called inside one of Spring's
 * transactions, by a {@code TransactionTemplate} or in a method that is {@code @Transactional}, commits with its rows.
 *
 * <p>Usage: {@code SpringOneCommit place JDBC_URL LAST_ORDER [ORDER]} or
 * {@code SpringOneCommit ship COORDINATOR_URL JDBC_URL MESSAGES [ORDER]}.
 */
public final class SpringOneCommit {
    private final JdbcTemplate book;
    private final SpringSql sql;
    private final TransactionTemplate transaction;

    private SpringOneCommit(String database) {
        DriverManagerDataSource source = new DriverManagerDataSource(database);
        book = new JdbcTemplate(source);
        sql = new SpringSql(book);
        transaction = new TransactionTemplate(new DataSourceTransactionManager(source));
        book.execute("create schema if not exists shop_java");
        book.execute("create table if not exists shop_java.orders (id int primary key)");
        book.execute("create table if not exists shop_java.shipments (order_id int not null)");
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length >= 3 && arguments[0].equals("place")) {
            new SpringOneCommit(arguments[1])
                    .place(Integer.parseInt(arguments[2]), OneCommit.held(arguments, 3));
        } else if (arguments.length >= 4 && arguments[0].equals("ship")) {
            new SpringOneCommit(arguments[2])
                    .ship(arguments[1], Integer.parseInt(arguments[3]), OneCommit.held(arguments, 4));
        } else {
            System.err.println("usage: SpringOneCommit place JDBC_URL LAST_ORDER [ORDER]");
            System.err.println("       SpringOneCommit ship COORDINATOR_URL JDBC_URL MESSAGES [ORDER]");
            System.exit(2);
        }
    }

    private void place(int last, int held) {
        Integer highest = book.queryForObject("select coalesce(max(id), 0) from shop_java.orders", Integer.class);
        for (int next = (highest == null ? 0 : highest) + 1; next <= last; next++) {
            int number = next;
            transaction.executeWithoutResult(
                    status -> {
                        book.update("insert into shop_java.orders (id) values (?)", number);
                        sql.post(OneCommit.order(number));
                        hold(number, held);
                    });
        }
        System.out.println("placed up to order " + last);
    }

    private void ship(String url, int messages, int held) throws JMSException {
        try (jakarta.jms.Connection connection = new JmsConnectionFactory(url).createConnection()) {
            connection.start();
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(session.createQueue(OneCommit.ORDERS));
            for (int taken = 0; taken < messages; taken++) {
                Message message = consumer.receive();
                int number = OneCommit.numberIn(message);
                String messageId = message.getJMSMessageID();
                transaction.executeWithoutResult(status -> work(number, messageId));
                hold(number, held);
                message.acknowledge();
            }
        }
        System.out.println("took " + messages + " messages");
    }

    private void work(int number, String messageId) {
        if (sql.firstTime(OneCommit.CONSUMER, messageId)) {
            book.update("insert into shop_java.shipments (order_id) values (?)", number);
            sql.post(OneCommit.parcel(number));
        } else {
            System.out.println("again order " + number);
        }
    }

    private static void hold(int number, int held) {
        try {
            OneCommit.holdAt(number, held);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
