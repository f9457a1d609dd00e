package bench;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.qpid.server.SystemLauncher;
import org.apache.qpid.server.model.SystemConfig;

/**
 * Apache Qpid Broker-J on a port of the loopback interface, with Berkeley DB as its store, which is flushed before a commit is
 * answered. A queue is made when a link names it.
 *
 * <p>Arguments: PORT FOLDER.
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
              "ports": [{
                "name": "amqp", "type": "AMQP", "port": "%s", "bindingAddress": "127.0.0.1",
                "authenticationProvider": "anyone", "protocols": ["AMQP_1_0"],
                "virtualhostaliases": [
                  {"name": "default", "type": "defaultAlias"},
                  {"name": "hosts", "type": "patternMatchingAlias", "pattern": ".*", "virtualHostNode": "default"}
                ]
              }],
              "virtualhostnodes": [{
                "name": "default", "type": "BDB", "defaultVirtualHostNode": "true", "storePath": "%s",
                "virtualHostInitialConfiguration": "%s"
              }]
            }
            """;

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[1]);
        Files.createDirectories(folder);
        Path configuration = folder.resolve("initial.json");
        String host = HOST.replace("\"", "\\\"").replace("\n", " ");
        Files.writeString(configuration, BROKER.formatted(arguments[0], folder.resolve("store"), host));
        Map<String, Object> attributes = new HashMap<>();
        attributes.put(SystemConfig.TYPE, "JSON");
        attributes.put("storePath", folder.resolve("config.json").toString());
        attributes.put(SystemConfig.INITIAL_CONFIGURATION_LOCATION, configuration.toString());
        attributes.put(SystemConfig.STARTUP_LOGGED_TO_SYSTEM_OUT, false);
        attributes.put(SystemConfig.CONTEXT, Map.of("qpid.work_dir", folder.toString()));
        SystemLauncher launcher = new SystemLauncher();
        Runtime.getRuntime().addShutdownHook(new Thread(launcher::shutdown));
        launcher.startup(attributes);
        Thread.currentThread().join();
    }
}
