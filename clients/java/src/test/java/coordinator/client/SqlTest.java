package coordinator.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.Message;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.jupiter.api.Test;
import org.springframework.dao.DataAccessException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.transaction.IllegalTransactionStateException;
import org.springframework.transaction.support.TransactionTemplate;

class SqlTest {
    @Test
    void messagesOfEveryKindComeWithTheCommit() throws Exception {
        String queue = Place.queue();
        try (Connection own = Place.store()) {
            Sql.post(own, Post.text(queue, "rolled back"));
            own.rollback();
            Sql.post(
                    own,
                    Post.json(queue, "{\"item\": \"ä\"}")
                            .messageId("order-1")
                            .header("colour", "\"100 %\"\n")
                            .header("pieces", 3)
                            .header("sold", true)
                            .groupId("customer-12")
                            .ttl(Duration.ofHours(1))
                            .priority(7));
            Sql.post(own, Post.octets(queue, new byte[] {0, 37}).delay(Duration.ofMillis(1)));
            Sql.post(own, Post.text(queue, "100 %s").deliverAt(Instant.now().plusMillis(200)));
            own.commit();
        }
        List<Message> found = take(queue, 3);
        Message order = found.stream().filter(each -> idOf(each).endsWith("order-1")).findFirst().orElseThrow();
        assertEquals("{\"item\": \"ä\"}", order.getBody(String.class));
        assertEquals("\"100 %\"\n", order.getStringProperty("colour"));
        assertEquals(3, order.getLongProperty("pieces"));
        assertTrue(order.getBooleanProperty("sold"));
        assertEquals("customer-12", order.getStringProperty("JMSXGroupID"));
        assertEquals(7, order.getJMSPriority());
        assertTrue(found.get(found.size() - 1).isBodyAssignableTo(String.class));
        assertEquals("100 %s", found.get(found.size() - 1).getBody(String.class));
    }

    @Test
    void manyComeInTheOrderOfTheirBodies() throws Exception {
        String queue = Place.queue();
        try (Connection own = Place.store()) {
            Sql.post(own, Post.texts(queue, List.of("{100 %s}", "ä\"")).header("n", 1));
            Sql.post(own, Post.jsons(queue, List.of("{\"item\": \"tea\"}", "null")));
            Sql.post(own, Post.manyOctets(queue, List.of(new byte[] {0, 37})));
            Sql.post(own, Post.texts(queue, List.of()));
            own.commit();
            assertEquals("22004", refused(() -> Sql.post(own, Post.texts(queue, Arrays.asList("tea", null)))));
        }
        List<Object> bodies = new ArrayList<>();
        for (Message each : take(queue, 5)) {
            bodies.add(each.isBodyAssignableTo(String.class)
                    ? each.getBody(String.class)
                    : each.getBody(byte[].class)[1]);
        }
        assertEquals(List.of("{100 %s}", "ä\"", "{\"item\": \"tea\"}", "null", (byte) 37), bodies);
    }

    private static String idOf(Message message) {
        try {
            return String.valueOf(message.getJMSMessageID());
        } catch (jakarta.jms.JMSException error) {
            throw new AssertionError(error);
        }
    }

    private static List<Message> take(String queue, int count) throws Exception {
        List<Message> found = new ArrayList<>();
        try (jakarta.jms.Connection connection = new JmsConnectionFactory(Place.URL).createConnection()) {
            connection.start();
            var session = connection.createSession();
            var consumer = session.createConsumer(session.createQueue(queue));
            while (found.size() < count) {
                found.add(consumer.receive());
            }
        }
        return found;
    }

    @Test
    void theFirstTimeIsOnce() throws SQLException {
        String consumer = Place.unique("billing");
        try (Connection own = Place.store()) {
            assertTrue(Sql.firstTime(own, consumer, "1"));
            own.rollback();
            assertTrue(Sql.firstTime(own, consumer, "1"));
            own.commit();
            assertFalse(Sql.firstTime(own, consumer, "1"));
            own.commit();
        }
    }

    @Test
    void whatTheStoreDoesNotKnowIsSaid() throws SQLException {
        try (Connection own = Place.store()) {
            assertEquals(Optional.empty(), Sql.outcome(own, new UUID(0, 0)));
            assertEquals("CO008", refused(() -> Sql.discharge(own, new UUID(0, 0), false)));
            own.rollback();
            assertEquals("CO006", refused(() -> Sql.post(own, Post.text("nowhere", "tea"))));
            own.rollback();
        }
        assertThrows(IllegalArgumentException.class, () -> Post.text("x", "y").header("at", Instant.now()).values());
    }

    private interface Asking {
        void ask() throws SQLException;
    }

    private static String refused(Asking asking) {
        return assertThrows(SQLException.class, asking::ask).getSQLState();
    }

    @Test
    void springsTransactionTakesThemAlong() throws Exception {
        DriverManagerDataSource source = new DriverManagerDataSource(System.getProperty("coordinator.jdbc"));
        SpringSql sql = new SpringSql(new JdbcTemplate(source));
        TransactionTemplate transaction = new TransactionTemplate(new DataSourceTransactionManager(source));
        String queue = Place.queue();
        String consumer = Place.unique("billing");
        for (boolean fails : new boolean[] {true, false}) {
            transaction.executeWithoutResult(
                    status -> {
                        assertTrue(sql.firstTime(consumer, "1"));
                        sql.post(Post.text(queue, "fails: " + fails));
                        if (fails) {
                            status.setRollbackOnly();
                        }
                    });
        }
        assertEquals("fails: false", take(queue, 1).get(0).getBody(String.class));
        assertThrows(IllegalTransactionStateException.class, () -> sql.post(Post.text(queue, "alone")));
        assertThrows(
                DataAccessException.class,
                () -> transaction.execute(status -> sql.discharge(new UUID(0, 0), false)));
    }

    @Test
    void aTransactionOfAnotherDataSourceTakesNothing() throws Exception {
        String url = System.getProperty("coordinator.jdbc");
        SpringSql sql = new SpringSql(new JdbcTemplate(new DriverManagerDataSource(url)));
        TransactionTemplate other =
                new TransactionTemplate(new DataSourceTransactionManager(new DriverManagerDataSource(url)));
        String queue = Place.queue();
        other.executeWithoutResult(
                status ->
                        assertThrows(
                                IllegalTransactionStateException.class, () -> sql.post(Post.text(queue, "alone"))));
        try (Connection own = Place.store()) {
            Sql.post(own, Post.text(queue, "after it"));
            own.commit();
        }
        assertEquals("after it", take(queue, 1).get(0).getBody(String.class));
    }
}
