package bench;

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.LongStream;

/**
 * A load of some workers, each a thread: they are waited for, warm up, and are measured. Flags and output are those of
 * load.c beside, as far as they make sense for whose load it is.
 */
public final class Load {
    public final String mode;
    private final Map<String, String> flags = new HashMap<>();
    private final LongAdder committed = new LongAdder();
    private CountDownLatch ready;
    private volatile boolean measuring;
    private volatile boolean ended;
    private volatile Exception failure;

    public Load(String[] arguments) {
        mode = arguments[0];
        for (String argument : Arrays.asList(arguments).subList(1, arguments.length)) {
            String[] parts = argument.replaceFirst("^--", "").split("=", 2);
            flags.put(parts[0], parts.length > 1 ? parts[1] : "");
        }
    }

    public String flag(String name, String otherwise) {
        return flags.getOrDefault(name, otherwise);
    }

    public int number(String name, int otherwise) {
        return Integer.parseInt(flag(name, Integer.toString(otherwise)));
    }

    /** Starts them, measures, prints what was measured, and ends the process: a connection that waits for messages would keep it. */
    public void run(List<? extends Worker> workers) throws InterruptedException {
        ready = new CountDownLatch(workers.size());
        workers.forEach(Thread::start);
        ready.await();
        Thread.sleep(milliseconds("warm", "1"));
        double cpuBefore = cpuSeconds();
        long committedBefore = committed.sum();
        long from = System.nanoTime();
        measuring = true;
        System.out.println("start");
        Thread.sleep(milliseconds("seconds", "3"));
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
            System.err.println("load: " + failure + (failure.getCause() == null ? "" : ": " + failure.getCause()));
            System.exit(2);
        }
        long[] times = workers.stream().flatMapToLong(Worker::times).sorted().toArray();
        System.out.printf(
                "{\"messages\": %d, \"seconds\": %.4f, \"total\": %d, \"limited\": false, \"cpu_seconds\": %.6f, "
                        + "\"latencies\": %d, \"p50_us\": %.0f, \"p99_us\": %.0f}%n",
                messages, seconds, committed.sum(), cpu, times.length, at(times, 0.50), at(times, 0.99));
        System.exit(0);
    }

    private long milliseconds(String name, String otherwise) {
        return (long) (1000 * Double.parseDouble(flag(name, otherwise)));
    }

    private static double at(long[] times, double share) {
        return times.length == 0 ? 0 : times[(int) Math.min(times.length - 1, times.length * share)] / 1000.0;
    }

    private static double cpuSeconds() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    /** Commits one transaction after the other. */
    public abstract static class Worker extends Thread {
        private final Load load;
        private long[] times = new long[1024];
        private int count;

        protected Worker(Load load) {
            this.load = load;
            setDaemon(true);
        }

        LongStream times() {
            return Arrays.stream(times, 0, count);
        }

        /** Opens what it needs, calls {@link #ready}, and works as long as {@link #goesOn}. */
        protected abstract void work() throws Exception;

        @Override
        public final void run() {
            try {
                work();
            } catch (Exception error) {
                load.failure = error;
                load.ready.countDown();
            }
        }

        protected final void ready() {
            load.ready.countDown();
        }

        protected final boolean goesOn() {
            return !load.ended;
        }

        /** Counts a transaction of so many messages, whose commit was asked for at that time of {@link System#nanoTime}. */
        protected final void committed(int messages, long asked) {
            if (load.measuring) {
                if (count == times.length) {
                    times = Arrays.copyOf(times, 2 * count);
                }
                times[count++] = System.nanoTime() - asked;
            }
            load.committed.add(messages);
        }
    }
}
