package bench;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.api.core.SimpleString;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;

/**
 * Apache ActiveMQ Artemis on a port of the loopback interface, as `artemis create` sets it up: a journal of files,
 * synced before a commit is answered, whose buffer waits as long as a flush of this disk takes.
 *
 * <p>Arguments: PORT FOLDER.
 */
public final class Artemis {
    public static void main(String[] arguments) throws Exception {
        String port = arguments[0];
        Path folder = Path.of(arguments[1]);
        ConfigurationImpl configuration = new ConfigurationImpl();
        configuration.setPersistenceEnabled(true);
        configuration.setSecurityEnabled(false);
        configuration.setJMXManagementEnabled(false);
        configuration.setJournalType(JournalType.NIO);
        configuration.setJournalDatasync(true);
        configuration.setJournalSyncTransactional(true);
        configuration.setJournalSyncNonTransactional(true);
        configuration.setJournalBufferTimeout_NIO((int) flushNanoseconds(folder));
        configuration.setJournalDirectory(folder.resolve("journal").toString());
        configuration.setBindingsDirectory(folder.resolve("bindings").toString());
        configuration.setLargeMessagesDirectory(folder.resolve("large").toString());
        configuration.setPagingDirectory(folder.resolve("paging").toString());
        configuration.setNodeManagerLockDirectory(folder.resolve("lock").toString());
        configuration.addAcceptorConfiguration(
                "amqp",
                "tcp://127.0.0.1:"
                        + port
                        + "?protocols=AMQP;useEpoll=true;amqpCredits=1000;amqpLowCredits=300;amqpMinLargeMessageSize=102400");
        AddressSettings all = new AddressSettings();
        all.setDefaultAddressRoutingType(RoutingType.ANYCAST);
        all.setDefaultQueueRoutingType(RoutingType.ANYCAST);
        all.setDeadLetterAddress(SimpleString.of("DLQ"));
        all.setExpiryAddress(SimpleString.of("ExpiryQueue"));
        configuration.addAddressSetting("#", all);
        EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
        broker.setConfiguration(configuration);
        broker.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> stop(broker)));
        Thread.currentThread().join();
    }

    private static void stop(EmbeddedActiveMQ broker) {
        try {
            broker.stop();
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    /** The median of 50 flushes of 4 KiB to a file that has its size, as the journal's: `artemis create` measures it to set the same. */
    private static long flushNanoseconds(Path folder) throws IOException {
        Files.createDirectories(folder);
        Path file = folder.resolve("flushes");
        long[] times = new long[50];
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            channel.write(ByteBuffer.allocate(times.length * 4096));
            channel.force(true);
            for (int number = 0; number < times.length; number++) {
                long before = System.nanoTime();
                channel.write(ByteBuffer.allocate(4096), number * 4096L);
                channel.force(false);
                times[number] = System.nanoTime() - before;
            }
        }
        Files.delete(file);
        Arrays.sort(times);
        return times[times.length / 2];
    }
}
