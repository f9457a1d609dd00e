package bench;

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A load of transactional messages: each connection is a producer with a client of its own, in which as many threads as it has slots send
 * a half message, whose local transaction says commit. The half message is answered; its commit is sent and has no answer, so a
 * transaction is counted when its commit was sent. Flags and output are those of load.c beside, as far as they make sense here.
 */
public final class RocketLoad {
    private static final LongAdder committed = new LongAdder();
    private static volatile boolean measuring;
    private static volatile boolean ended;
    private static volatile Exception failure;

    public static void main(String[] arguments) throws Exception {
        Map<String, String> flags = new HashMap<>();
        for (String argument : Arrays.asList(arguments).subList(1, arguments.length)) {
            String[] parts = argument.replaceFirst("^--", "").split("=", 2);
            flags.put(parts[0], parts.length > 1 ? parts[1] : "");
        }
        if (!arguments[0].equals("post") || !flags.getOrDefault("transaction", "1").equals("1")) {
            throw new IllegalArgumentException("a transaction of RocketMQ posts one message, and retires none");
        }
        int connections = Integer.parseInt(flags.getOrDefault("connections", "1"));
        int slots = Integer.parseInt(flags.getOrDefault("slots", "1"));
        Worker[] workers = new Worker[connections * slots];
        CountDownLatch ready = new CountDownLatch(workers.length);
        for (int number = 0; number < connections; number++) {
            TransactionMQProducer producer = producer(number, "127.0.0.1:" + flags.get("port"));
            topic(producer, flags.getOrDefault("target", "B"));
            for (int slot = 0; slot < slots; slot++) {
                Worker worker = new Worker(producer, flags, ready);
                workers[number * slots + slot] = worker;
                worker.start();
            }
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
            System.err.println("load: " + failure.getMessage() + ": " + failure.getCause());
            System.exit(2);
        }
        long[] times = Arrays.stream(workers).flatMapToLong(worker -> Arrays.stream(worker.times, 0, worker.count)).sorted().toArray();
        System.out.printf(
                "{\"messages\": %d, \"seconds\": %.4f, \"total\": %d, \"limited\": false, \"cpu_seconds\": %.6f, "
                        + "\"latencies\": %d, \"p50_us\": %.0f, \"p99_us\": %.0f}%n",
                messages, seconds, committed.sum(), cpu, times.length, at(times, 0.50), at(times, 0.99));
        System.exit(0);
    }

    private static TransactionMQProducer producer(int number, String names) throws MQClientException {
        TransactionMQProducer producer = new TransactionMQProducer("bench");
        producer.setNamesrvAddr(names);
        producer.setInstanceName("bench-" + number); // one of a name would be shared
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        return producer;
    }

    /** Has it made, and waits until its producer knows where it is; the broker may not have told its name server yet that it is there. */
    private static void topic(TransactionMQProducer producer, String name) throws Exception {
        for (long until = System.nanoTime() + 60_000_000_000L; ; Thread.sleep(500)) {
            try {
                producer.createTopic("TBW102", name, 8, Map.of());
                producer.fetchPublishMessageQueues(name);
                return;
            } catch (MQClientException error) {
                if (System.nanoTime() > until) {
                    throw error;
                }
            }
        }
    }

    private static double at(long[] times, double share) {
        return times.length == 0 ? 0 : times[(int) Math.min(times.length - 1, times.length * share)] / 1000.0;
    }

    private static double cpuSeconds() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    private static final class Worker extends Thread {
        private final TransactionMQProducer producer;
        private final String target;
        private final byte[] body;
        private final CountDownLatch ready;
        private long[] times = new long[1024];
        private int count;

        Worker(TransactionMQProducer producer, Map<String, String> flags, CountDownLatch ready) {
            this.producer = producer;
            this.ready = ready;
            target = flags.getOrDefault("target", "B");
            body = new byte[Integer.parseInt(flags.getOrDefault("body", "256"))];
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                ready.countDown();
                for (long number = 0; !ended; number++) {
                    long before = System.nanoTime();
                    send(number);
                    if (measuring) {
                        if (count == times.length) {
                            times = Arrays.copyOf(times, 2 * count);
                        }
                        times[count++] = System.nanoTime() - before;
                    }
                    committed.increment();
                }
            } catch (Exception error) {
                failure = error;
                ready.countDown();
            }
        }

        private void send(long number) throws MQClientException {
            Message message = new Message(target, body);
            message.putUserProperty("order", "order-" + number);
            message.putUserProperty("position", "0");
            SendStatus status = producer.sendMessageInTransaction(message, null).getSendStatus();
            if (status != SendStatus.SEND_OK) {
                throw new MQClientException("a half message was answered " + status, null);
            }
        }
    }
}
