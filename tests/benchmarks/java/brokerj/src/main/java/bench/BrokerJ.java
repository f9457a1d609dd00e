package bench;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.qpid.server.SystemLauncher;
import org.apache.qpid.server.SystemLauncherListener.DefaultSystemLauncherListener;
import org.apache.qpid.server.model.Port;
import org.apache.qpid.server.model.SystemConfig;

/**
 * Apache Qpid Broker-J on a port of the loopback interface, with Berkeley DB as its store, whose log is flushed before
 * a commit is answered. A durable queue is made when a link names it.
 *
 * <p>Arguments: PORT FOLDER. What an earlier process left in the folder is recovered.
 */
public final class BrokerJ {
    private static final String HOST = """
            {"type": "BDB", "nodeAutoCreationPolicies": [
               {"pattern": ".*", "nodeType": "queue", "createdOnPublish": "true", "createdOnConsume": "true",
                "attributes": {"durable": "true"}}]}""";
    private static final String BROKER = """
            {
              "name": "bench",
              "modelVersion": "9.0",
              "authenticationproviders": [{"name": "anyone", "type": "Anonymous"}],
              "virtualhostnodes": [{
                "name": "default", "type": "BDB", "defaultVirtualHostNode": "true", "storePath": "%s",
                "virtualHostInitialConfiguration": "%s"
              }]
            }
            """;

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[1]);
        Files.createDirectories(folder);
        Path initial = folder.resolve("initial.json");
        Path configuration = folder.resolve("config.json");
        Files.deleteIfExists(configuration); // it is the same each time but for the port; queues and messages are in the store
        String host = HOST.replace("\"", "\\\"").replace("\n", " ");
        Files.writeString(initial, BROKER.formatted(folder.resolve("store"), host));
        AtomicReference<SystemConfig<?>> system = new AtomicReference<>();
        SystemLauncher launcher = new SystemLauncher(new DefaultSystemLauncherListener() {
            @Override
            public void onContainerResolve(SystemConfig<?> resolved) {
                system.set(resolved);
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(launcher::shutdown));
        launcher.startup(Map.of(
                SystemConfig.TYPE, "JSON",
                "storePath", configuration.toString(),
                SystemConfig.INITIAL_CONFIGURATION_LOCATION, initial.toString(),
                SystemConfig.STARTUP_LOGGED_TO_SYSTEM_OUT, false,
                SystemConfig.CONTEXT, Map.of("qpid.work_dir", folder.toString())));
        listen(system.get(), arguments[0]);
        Thread.currentThread().join();
    }

    /** A port of the configuration would be open before the store is recovered, and refuse connections until then. */
    private static void listen(SystemConfig<?> system, String port) {
        system.getContainer().createChild(Port.class, Map.of(
                "name", "amqp",
                "type", "AMQP",
                "port", port,
                "bindingAddress", "127.0.0.1",
                "authenticationProvider", "anyone",
                "protocols", "[\"AMQP_1_0\"]"));
    }
}
