package coordinator.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import jakarta.jms.JMSException;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.jupiter.api.Test;

class CheckerTest {
    /** One transaction for each text, undecided, as their client leaves them when its network breaks. */
    private static void leave(String queue, String group, String... texts) throws Exception {
        try (Place.Relay relay = new Place.Relay()) {
            JmsConnectionFactory factory = new JmsConnectionFactory(relay.url());
            factory.setForceSyncSend(true);
            factory.setValidatePropertyNames(false);
            jakarta.jms.Connection connection = factory.createConnection();
            for (String text : texts) {
                Session session = connection.createSession(Session.SESSION_TRANSACTED);
                TextMessage message = session.createTextMessage(text);
                message.setStringProperty("producer-group", group);
                message.setIntProperty("check-immunity-ms", 0);
                session.createProducer(session.createQueue(queue)).send(message);
            }
        }
    }

    @Test
    void eachCheckIsAnsweredWithWhatBecameOfItsTransaction() throws Exception {
        String queue = Place.queue();
        String group = Place.unique("shop");
        leave(queue, group, "commit", "rollback", "commit");
        List<String> asked = new ArrayList<>();
        Checker[] checker = new Checker[1];
        checker[0] =
                new Checker(
                        Place.URL,
                        group,
                        check -> {
                            asked.add(check.getBody(String.class));
                            if (asked.size() == 3) {
                                checker[0].close(); // its own answer is sent
                            }
                            return asked.get(asked.size() - 1).equals("commit")
                                    ? Checker.Answer.COMMIT
                                    : Checker.Answer.ROLLBACK;
                        });
        checker[0].run();
        asked.sort(null);
        assertEquals(List.of("commit", "commit", "rollback"), asked);
        try (jakarta.jms.Connection connection = new JmsConnectionFactory(Place.URL).createConnection()) {
            connection.start();
            Session session = connection.createSession();
            var consumer = session.createConsumer(session.createQueue(queue));
            for (int taken = 0; taken < 2; taken++) {
                assertEquals("commit", consumer.receive().getBody(String.class));
            }
            assertEquals(null, consumer.receiveNoWait());
        }
    }

    @Test
    void anErrorIsNoAnswerAndAnotherThreadMayCloseIt() throws Exception {
        String group = Place.unique("shop");
        leave(Place.queue(), group, "one", "other");
        Set<String> asked = new TreeSet<>();
        CountDownLatch both = new CountDownLatch(2);
        Checker checker =
                new Checker(
                        Place.URL,
                        group,
                        check -> {
                            asked.add(check.getBody(String.class));
                            both.countDown();
                            throw new IllegalStateException("the book is away");
                        });
        CompletableFuture<Void> run = CompletableFuture.runAsync(() -> runs(checker));
        both.await();
        checker.close();
        run.get();
        assertEquals(Set.of("one", "other"), asked);
    }

    @Test
    void itGoesOnAfterItsConnectionWasLost() throws Exception {
        String queue = Place.queue();
        String group = Place.unique("shop");
        BlockingQueue<String> asked = new LinkedBlockingQueue<>();
        try (Place.Relay relay = new Place.Relay()) {
            Checker checker =
                    new Checker(
                            relay.url(),
                            group,
                            check -> {
                                asked.add(check.getBody(String.class));
                                return Checker.Answer.ROLLBACK;
                            });
            CompletableFuture<Void> run = CompletableFuture.runAsync(() -> runs(checker));
            for (String text : List.of("before", "after")) {
                leave(queue, group, text);
                assertEquals(text, asked.take());
                relay.cut();
            }
            checker.close();
            run.get();
        }
    }

    @Test
    void oneThatIsRefusedForGoodSaysWhy() throws Exception {
        try (Checker checker = new Checker(Place.URL, "x".repeat(300), check -> Checker.Answer.UNKNOWN)) {
            assertThrows(JMSException.class, checker::run);
        }
    }

    @Test
    void itConnectsAgainUntilItIsClosed() throws Exception {
        Checker checker = new Checker("amqp://127.0.0.1:1", "shop", check -> Checker.Answer.UNKNOWN);
        CompletableFuture<Void> run = CompletableFuture.runAsync(() -> runs(checker));
        Thread.sleep(500);
        checker.close();
        run.get();
    }

    /** The header of SASL and the mechanism PLAIN; the outcome sys-temp. */
    private static final String MECHANISMS = "414d515003010000" + "0000001502010000" + "005340c00801a305504c41494e";

    private static final String SYS_TEMP = "0000001002010000" + "005344c003015004";

    @Test
    void itConnectsAgainWhereNobodyCanLogInForNow() throws Exception {
        CompletableFuture<Void> run;
        try (ServerSocket server = new ServerSocket(0, 5, InetAddress.getLoopbackAddress())) {
            String url = "amqp://127.0.0.1:" + server.getLocalPort() + "?jms.username=shop&jms.password=secret";
            Checker checker = new Checker(url, "shop", check -> Checker.Answer.UNKNOWN);
            run = CompletableFuture.runAsync(() -> runs(checker));
            for (int logins = 0; logins < 2; logins++) {
                try (Socket client = server.accept()) {
                    client.getInputStream().readNBytes(8);
                    client.getOutputStream().write(HexFormat.of().parseHex(MECHANISMS));
                    client.getInputStream().read(new byte[512]);
                    client.getOutputStream().write(HexFormat.of().parseHex(SYS_TEMP));
                }
            }
            checker.close();
        }
        run.get();
    }

    private static void runs(Checker checker) {
        try {
            checker.run();
        } catch (JMSException | InterruptedException error) {
            throw new AssertionError(error);
        }
    }
}
