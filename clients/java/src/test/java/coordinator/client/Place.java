package coordinator.client;

import jakarta.jms.JMSException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.apache.qpid.jms.JmsConnectionFactory;

/** The service of the tests: {@code coordinator.url} says where it is, {@code coordinator.jdbc} where its store is. */
final class Place {
    static final String URL = System.getProperty("coordinator.url");

    private Place() {}

    static Connection store() throws SQLException {
        Connection connection = DriverManager.getConnection(System.getProperty("coordinator.jdbc"));
        connection.setAutoCommit(false);
        return connection;
    }

    static String unique(String name) {
        return name + "-" + UUID.randomUUID();
    }

    /** A queue of the test's own: it is made by being named in a link. */
    static String queue() throws JMSException {
        String name = unique("queue");
        try (jakarta.jms.Connection connection = new JmsConnectionFactory(URL).createConnection()) {
            var session = connection.createSession();
            session.createProducer(session.createQueue(name));
        }
        return name;
    }

    /** Passes octets on between a client and the service, until it is closed: as a network that breaks. */
    static final class Relay implements AutoCloseable {
        private final ServerSocket listener = new ServerSocket(0);
        private final List<Socket> sockets = new ArrayList<>();

        Relay() throws IOException {
            Thread accepting = new Thread(this::accept);
            accepting.setDaemon(true);
            accepting.start();
        }

        String url() {
            return "amqp://127.0.0.1:" + listener.getLocalPort();
        }

        private void accept() {
            URI there = URI.create(URL);
            try {
                while (true) {
                    Socket near = listener.accept();
                    Socket far = new Socket(there.getHost(), there.getPort());
                    synchronized (sockets) {
                        sockets.addAll(List.of(near, far));
                    }
                    pass(near.getInputStream(), far.getOutputStream());
                    pass(far.getInputStream(), near.getOutputStream());
                }
            } catch (IOException closed) {
                return;
            }
        }

        private static void pass(InputStream from, OutputStream to) {
            Thread passing =
                    new Thread(
                            () -> {
                                try {
                                    from.transferTo(to);
                                } catch (IOException closed) {
                                    return;
                                }
                            });
            passing.setDaemon(true);
            passing.start();
        }

        /** The connections that there are; new ones come through. */
        void cut() throws IOException {
            synchronized (sockets) {
                for (Socket each : sockets) {
                    each.close();
                }
                sockets.clear();
            }
        }

        @Override
        public void close() throws IOException {
            listener.close();
            cut();
        }
    }
}
