package acceptance;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Topics with their subscriptions of every kind, and the consumer groups of a queue. */
final class SubscriptionCases {
    private SubscriptionCases() {}

    static Map<String, Driver.Case> all() {
        return Map.of(
                "topic", SubscriptionCases::topic,
                "topic-in-a-transaction", SubscriptionCases::topicInATransaction,
                "durable-subscription", SubscriptionCases::durableSubscription,
                "durable-in-a-transaction", SubscriptionCases::durableInATransaction,
                "shared-consumers", SubscriptionCases::sharedConsumers,
                "shared-durable-consumers", SubscriptionCases::sharedDurableConsumers,
                "temporary-topic", SubscriptionCases::temporaryTopic,
                "consumer-groups", SubscriptionCases::consumerGroups,
                "broadcast", SubscriptionCases::broadcast);
    }

    private static Topic topic(Broker broker, Session session, String name) throws JMSException {
        return session.createTopic(broker.address(name));
    }

    /** Publishes {@code stem}0 … {@code stem}(count-1) on a connection of its own. */
    private static void publish(Broker broker, String name, String stem, int count) throws JMSException {
        Connection connection = broker.connect();
        Session session = Broker.automatic(connection);
        Broker.send(session, session.createProducer(topic(broker, session, name)), stem, count);
        connection.close();
    }

    private static void topic(Broker broker, Map<String, Object> seen) throws Exception {
        publish(broker, "t", "too early ", 1);
        Connection connection = broker.connect();
        List<MessageConsumer> subscribers = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Session session = Broker.automatic(connection);
            subscribers.add(session.createConsumer(topic(broker, session, "t")));
        }
        publish(broker, "t", "m", 3);
        List<List<String>> received = new ArrayList<>();
        for (MessageConsumer subscriber : subscribers) {
            received.add(Broker.receive(subscriber, 3));
        }
        subscribers.get(0).close();
        publish(broker, "t", "later", 1);
        seen.put("received", received);
        seen.put("later", List.of(Broker.receive(subscribers.get(1), 1), Broker.receive(subscribers.get(2), 1)));
    }

    private static void topicInATransaction(Broker broker, Map<String, Object> seen) throws Exception {
        List<MessageConsumer> subscribers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Session session = Broker.automatic(broker.connect());
            subscribers.add(session.createConsumer(topic(broker, session, "t")));
        }
        Session session = Broker.transacted(broker.connect());
        MessageProducer producer = session.createProducer(topic(broker, session, "t"));
        Broker.send(session, producer, "committed", 2);
        publish(broker, "t", "before the commit", 1);
        session.commit();
        Broker.send(session, producer, "rolled back", 2);
        session.rollback();
        publish(broker, "t", "end", 1);
        List<List<String>> received = new ArrayList<>();
        for (MessageConsumer subscriber : subscribers) {
            received.add(Broker.receiveUpTo(subscriber, "end0"));
        }
        seen.put("received", received);
    }

    private static void durableSubscription(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connectAs("shop");
        Session session = Broker.automatic(connection);
        MessageConsumer consumer = session.createDurableConsumer(topic(broker, session, "t"), "prices");
        publish(broker, "t", "first", 2);
        seen.put("first", Broker.receive(consumer, 2));
        consumer.close();
        publish(broker, "t", "closed", 2);
        connection.close();

        // its connection went with the consumer open
        connection = broker.connectAs("shop");
        session = Broker.automatic(connection);
        consumer = session.createDurableConsumer(topic(broker, session, "t"), "prices");
        seen.put("while_closed", Broker.receive(consumer, 2));
        connection.close();
        publish(broker, "t", "away", 2);

        // another client's subscription of that name is another one
        Connection other = broker.connectAs("another shop");
        Session strange = Broker.automatic(other);
        MessageConsumer stranger = strange.createDurableConsumer(topic(broker, strange, "t"), "prices");

        connection = broker.connectAs("shop");
        session = Broker.automatic(connection);
        consumer = session.createDurableConsumer(topic(broker, session, "t"), "prices");
        seen.put("while_away", Broker.receive(consumer, 2));
        consumer.close();
        publish(broker, "t", "dropped", 1);
        session.unsubscribe("prices");
        consumer = session.createDurableConsumer(topic(broker, session, "t"), "prices");
        publish(broker, "t", "end", 1);
        seen.put("after_unsubscribe", Broker.receiveUpTo(consumer, "end0"));
        seen.put("stranger", Broker.receiveUpTo(stranger, "end0"));
        consumer.close();
        stranger.close();
        session.unsubscribe("prices");
        strange.unsubscribe("prices");
        try {
            session.unsubscribe("prices");
            seen.put("unsubscribed_twice", "succeeded");
        } catch (JMSException error) {
            seen.put("unsubscribed_twice", error.getClass().getSimpleName());
        }
    }

    private static void durableInATransaction(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connectAs("transacted shop");
        Session session = Broker.transacted(connection);
        MessageConsumer consumer = session.createDurableConsumer(topic(broker, session, "t"), "prices");
        publish(broker, "t", "m", 4);
        seen.put("committed", Broker.receive(consumer, 2));
        session.commit();
        seen.put("rolled_back", Broker.receive(consumer, 1));
        session.rollback();
        seen.put("abandoned", Broker.receive(consumer, 2));
        connection.close();

        connection = broker.connectAs("transacted shop");
        session = Broker.transacted(connection);
        consumer = session.createDurableConsumer(topic(broker, session, "t"), "prices");
        publish(broker, "t", "end", 1);
        seen.put("left", Broker.receiveUpTo(consumer, "end0"));
        session.commit();
        consumer.close();
        session.unsubscribe("prices");
    }

    /** Two that share, on two sessions of one connection, and one that does not: with a client's id and without. */
    private static void sharedConsumers(Broker broker, Map<String, Object> seen) throws Exception {
        for (String client : new String[] {"shop", ""}) {
            String name = client.isEmpty() ? "anyone" : client;
            Connection connection =
                    client.isEmpty()
                            ? broker.connect("jms.prefetchPolicy.all=0")
                            : broker.connectAs(client, "jms.prefetchPolicy.all=0");
            // without an id a subscription is shared by all connections
            Connection second = client.isEmpty() ? broker.connect("jms.prefetchPolicy.all=0") : connection;
            List<MessageConsumer> members = new ArrayList<>();
            for (Connection each : List.of(connection, second)) {
                Session session = Broker.automatic(each);
                members.add(session.createSharedConsumer(topic(broker, session, name), "prices"));
            }
            Session session = Broker.automatic(connection);
            MessageConsumer alone = session.createConsumer(topic(broker, session, name));
            publish(broker, name, "m", 2);
            seen.put(name + "_alone", Broker.receive(alone, 2));
            List<String> received = new ArrayList<>();
            for (MessageConsumer member : members) {
                received.addAll(Broker.receive(member, 1)); // nothing is fetched ahead: none has both
            }
            received.sort(null);
            seen.put(name, received);
            members.get(0).close(); // the other goes on with all of it
            publish(broker, name, "rest", 2);
            seen.put(name + "_rest", Broker.receive(members.get(1), 2));
            members.get(1).close(); // and with the last the subscription is gone
            publish(broker, name, "lost", 1);
            MessageConsumer again = session.createSharedConsumer(topic(broker, session, name), "prices");
            publish(broker, name, "end", 1);
            seen.put(name + "_again", Broker.receiveUpTo(again, "end0"));
            connection.close();
            second.close();
        }
    }

    private static void sharedDurableConsumers(Broker broker, Map<String, Object> seen) throws Exception {
        List<Connection> connections = new ArrayList<>();
        List<MessageConsumer> members = new ArrayList<>();
        for (String round : List.of("first", "away")) {
            if (round.equals("away")) {
                for (Connection connection : connections) {
                    connection.close();
                }
                connections.clear();
                members.clear();
                publish(broker, "t", round, 2);
            }
            for (int i = 0; i < 2; i++) {
                Connection connection = broker.connect("jms.prefetchPolicy.all=0");
                connections.add(connection);
                Session session = Broker.automatic(connection);
                members.add(session.createSharedDurableConsumer(topic(broker, session, "t"), "prices"));
            }
            if (round.equals("first")) {
                publish(broker, "t", round, 2);
            }
            List<String> received = new ArrayList<>();
            for (MessageConsumer member : members) {
                received.addAll(Broker.receive(member, 1));
            }
            received.sort(null);
            seen.put(round, received);
        }
        for (MessageConsumer member : members) {
            member.close();
        }
        publish(broker, "t", "dropped", 1);
        Session session = Broker.automatic(connections.get(0));
        session.unsubscribe("prices");
        MessageConsumer consumer = session.createSharedDurableConsumer(topic(broker, session, "t"), "prices");
        publish(broker, "t", "end", 1);
        seen.put("after_unsubscribe", Broker.receiveUpTo(consumer, "end0"));
        consumer.close();
        session.unsubscribe("prices");
    }

    private static void temporaryTopic(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session session = Broker.automatic(connection);
        TemporaryTopic news = session.createTemporaryTopic();
        MessageConsumer first = session.createConsumer(news);
        MessageConsumer second = session.createConsumer(news);
        Message request = session.createTextMessage("question");
        request.setJMSReplyTo(news);
        session.createProducer(broker.queue(session, "requests")).send(request);

        Session server = Broker.transacted(broker.connect());
        Message asked = Broker.receive(server.createConsumer(broker.queue(server, "requests")));
        Broker.send(server, server.createProducer(asked.getJMSReplyTo()), "answer", 2);
        server.commit();

        seen.put("first", Broker.receive(first, 2));
        seen.put("second", Broker.receive(second, 2));
        seen.put("address", news.getTopicName());
        first.close();
        second.close();
        news.delete();
    }

    private static void broadcast(Broker broker, Map<String, Object> seen) throws Exception {
        List<MessageConsumer> listeners = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Session session = Broker.automatic(broker.connect());
            listeners.add(session.createConsumer(broker.queue(session, "orders::*")));
        }
        Session writer = Broker.transacted(broker.connect());
        MessageProducer producer = writer.createProducer(broker.queue(writer, "orders"));
        Broker.send(writer, producer, "rolled back", 1);
        writer.rollback();
        Broker.send(writer, producer, "m", 2);
        writer.commit();
        seen.put("first", Broker.receive(listeners.get(0), 2));
        seen.put("second", Broker.receive(listeners.get(1), 2));
        seen.put("queue", broker.takeAll("orders"));
    }

    private static void consumerGroups(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session session = Broker.transacted(connection);
        MessageConsumer billing = session.createConsumer(broker.queue(session, "orders::billing"));
        Session members = Broker.automatic(broker.connect("jms.prefetchPolicy.all=0"));
        List<MessageConsumer> shipping = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            shipping.add(members.createConsumer(broker.queue(members, "orders::shipping")));
        }
        Session writer = Broker.transacted(broker.connect());
        MessageProducer producer = writer.createProducer(broker.queue(writer, "orders"));
        Broker.send(writer, producer, "rolled back", 1);
        writer.rollback();
        Broker.send(writer, producer, "m", 2);
        writer.commit();

        seen.put("rolled_back", Broker.receive(billing, 2));
        session.rollback();
        seen.put("billing", Broker.receive(billing, 2));
        session.commit();
        List<String> shared = new ArrayList<>();
        for (MessageConsumer member : shipping) {
            shared.addAll(Broker.receive(member, 1));
        }
        shared.sort(null);
        seen.put("shipping", shared);
        billing.close();
        // a group stays when its members are gone
        Broker.send(writer, producer, "later", 1);
        writer.commit();
        billing = session.createConsumer(broker.queue(session, "orders::billing"));
        seen.put("later", Broker.receive(billing, 1));
        session.commit();
        seen.put("default_group", broker.takeAll("orders"));
    }
}
