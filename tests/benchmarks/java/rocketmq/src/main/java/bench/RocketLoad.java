package bench;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A load of transactional messages: each connection is a producer with a client of its own, in which as many threads as
 * it has slots send a half message, whose local transaction says commit. The half message is answered; its commit is
 * sent and has no answer, so a transaction is counted when its commit was sent.
 */
public final class RocketLoad {
    public static void main(String[] arguments) throws Exception {
        Load load = new Load(arguments);
        if (!load.mode.equals("post") || load.number("transaction", 1) != 1) {
            throw new IllegalArgumentException("a transaction of RocketMQ posts one message, and retires none");
        }
        List<Worker> workers = new ArrayList<>();
        for (int number = 0; number < load.number("connections", 1); number++) {
            TransactionMQProducer producer = producer(number, "127.0.0.1:" + load.flag("port", null));
            topic(producer, load.flag("target", "B"));
            for (int slot = 0; slot < load.number("slots", 1); slot++) {
                workers.add(new Worker(load, producer));
            }
        }
        load.run(workers);
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

    private static final class Worker extends Load.Worker {
        private final TransactionMQProducer producer;
        private final String target;
        private final byte[] body;

        Worker(Load load, TransactionMQProducer producer) {
            super(load);
            this.producer = producer;
            target = load.flag("target", "B");
            body = new byte[load.number("body", 256)];
        }

        @Override
        protected void work() throws MQClientException {
            ready();
            for (long number = 0; goesOn(); number++) {
                long before = System.nanoTime();
                send(number);
                committed(1, before);
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
