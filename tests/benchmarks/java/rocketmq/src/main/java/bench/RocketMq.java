package bench;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Path;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Apache RocketMQ on the loopback interface: a name server on the port, and a broker that it knows, whose log is
 * flushed before a message is answered. What an earlier process left in the folder is recovered. It is not shut down at
 * the end: that takes most of a minute.
 *
 * <p>Arguments: PORT FOLDER.
 */
public final class RocketMq {
    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        Path folder = Path.of(arguments[1]);
        System.setProperty("user.home", folder.toString());
        // as its own starters do: without it the name server takes the broker for one of version 3, and does not read
        // its topics
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        NettyServerConfig names = new NettyServerConfig();
        names.setBindAddress("127.0.0.1");
        names.setListenPort(port);
        NamesrvConfig namesrv = new NamesrvConfig();
        namesrv.setKvConfigPath(folder.resolve("names.json").toString());
        NamesrvController directory = new NamesrvController(namesrv, names);
        directory.initialize();
        directory.start();
        BrokerConfig broker = new BrokerConfig();
        broker.setNamesrvAddr("127.0.0.1:" + port);
        broker.setBrokerIP1("127.0.0.1");
        broker.setAutoCreateTopicEnable(true);
        NettyServerConfig server = new NettyServerConfig();
        server.setBindAddress("127.0.0.1");
        server.setListenPort(freePort());
        broker.setListenPort(server.getListenPort());
        MessageStoreConfig store = new MessageStoreConfig();
        store.setStorePathRootDir(folder.resolve("store").toString());
        store.setStorePathCommitLog(folder.resolve("store/commitlog").toString());
        store.setFlushDiskType(FlushDiskType.SYNC_FLUSH);
        store.setHaListenPort(freePort());
        BrokerController controller = new BrokerController(broker, server, new NettyClientConfig(), store);
        if (!controller.initialize()) {
            throw new IllegalStateException("the broker could not be initialized");
        }
        controller.start();
        Thread.currentThread().join();
    }

    private static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }
}
