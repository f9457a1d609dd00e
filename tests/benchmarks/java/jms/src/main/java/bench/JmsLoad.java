package bench;

import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.LongAdder;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * A load as applications on Qpid JMS make it: each connection is a thread with one session in a transaction, which posts (mode post), or
 * receives and posts (transfer), and commits. Flags and output are those of load.c beside, as far as they make sense here.
 */
public final class JmsLoad {
    private static final LongAdder committed = new LongAdder();
    private static volatile boolean measuring;
    private static volatile boolean ended;
    private static volatile Exception failure;

    public static void main(String[] arguments) throws Exception {
        String mode = arguments[0];
        Map<String, String> flags = new HashMap<>();
        for (String argument : Arrays.asList(arguments).subList(1, arguments.length)) {
            String[] parts = argument.replaceFirst("^--", "").split("=", 2);
            flags.put(parts[0], parts.length > 1 ? parts[1] : "");
        }
        int connections = Integer.parseInt(flags.getOrDefault("connections", "1"));
        JmsConnectionFactory factory =
                new JmsConnectionFactory("amqp://127.0.0.1:" + flags.get("port") + "?jms.prefetchPolicy.all=1000");
        Worker[] workers = new Worker[connections];
        CountDownLatch ready = new CountDownLatch(connections);
        for (int number = 0; number < connections; number++) {
            workers[number] = new Worker(mode, factory, flags, ready);
            workers[number].start();
        }
        ready.await();
        Thread.sleep((long) (1000 * Double.parseDouble(flags.getOrDefault("warm", "1"))));
        double cpuBefore = cpuSeconds();
        long committedBefore = committed.sum();
        long from = System.nanoTime();
        measuring = true;
        System.out.println("start");
        Thread.sleep((long) (1000 * Double.parseDouble(flags.getOrDefault("seconds", "3"))));
        measuring = false;
        long messages = committed.sum() - committedBefore;
        double seconds = (System.nanoTime() - from) / 1e9;
        double cpu = cpuSeconds() - cpuBefore;
        System.out.println("end");
        ended = true;
        for (Worker worker : workers) {
            worker.join(10_000);
        }
        if (failure != null) {
            System.err.println("load: " + failure);
            System.exit(2);
        }
        long[] times = Arrays.stream(workers).flatMapToLong(worker -> Arrays.stream(worker.times, 0, worker.count)).sorted().toArray();
        System.out.printf(
                "{\"messages\": %d, \"seconds\": %.4f, \"total\": %d, \"limited\": false, \"cpu_seconds\": %.6f, "
                        + "\"latencies\": %d, \"p50_us\": %.0f, \"p99_us\": %.0f}%n",
                messages, seconds, committed.sum(), cpu, times.length, at(times, 0.50), at(times, 0.99));
        System.exit(0); // a connection that waits for messages would keep the process
    }

    private static double at(long[] times, double share) {
        return times.length == 0 ? 0 : times[(int) Math.min(times.length - 1, times.length * share)] / 1000.0;
    }

    private static double cpuSeconds() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    private static final class Worker extends Thread {
        private final String mode;
        private final JmsConnectionFactory factory;
        private final String queue;
        private final String target;
        private final int transaction;
        private final String text;
        private final CountDownLatch ready;
        private long[] times = new long[1024];
        private int count;

        Worker(String mode, JmsConnectionFactory factory, Map<String, String> flags, CountDownLatch ready) {
            this.mode = mode;
            this.factory = factory;
            this.ready = ready;
            queue = flags.getOrDefault("queue", "A");
            target = flags.getOrDefault("target", "B");
            transaction = Integer.parseInt(flags.getOrDefault("transaction", "1"));
            text = "x".repeat(Integer.parseInt(flags.getOrDefault("body", "256")));
            setDaemon(true);
        }

        @Override
        public void run() {
            try (Connection connection = factory.createConnection()) {
                connection.start();
                Session session = connection.createSession(Session.SESSION_TRANSACTED);
                MessageProducer producer = session.createProducer(session.createQueue(target));
                producer.setDeliveryMode(DeliveryMode.PERSISTENT);
                MessageConsumer consumer = mode.equals("transfer") ? session.createConsumer(session.createQueue(queue)) : null;
                ready.countDown();
                for (long number = 0; !ended; number++) {
                    work(session, producer, consumer, number);
                }
            } catch (Exception error) {
                failure = error;
                ready.countDown();
            }
        }

        private void work(Session session, MessageProducer producer, MessageConsumer consumer, long number) throws JMSException {
            for (int each = 0; each < transaction; each++) {
                if (consumer != null && consumer.receive(15_000) == null) {
                    throw new JMSException("nothing came for 15 s");
                }
                TextMessage message = session.createTextMessage(text);
                message.setStringProperty("order", "order-" + number);
                message.setIntProperty("position", each);
                producer.send(message);
            }
            long before = System.nanoTime();
            session.commit();
            if (measuring) {
                if (count == times.length) {
                    times = Arrays.copyOf(times, 2 * count);
                }
                times[count++] = System.nanoTime() - before;
            }
            committed.add(transaction);
        }
    }
}
