package acceptance;

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;

/** What is in a message comes back as it went. */
final class MessageCases {
    private MessageCases() {}

    static Map<String, Driver.Case> all() {
        return Map.of("bodies", MessageCases::bodies, "large", MessageCases::large, "groups", MessageCases::groups);
    }

    /** Two consumers, and messages of two groups by turns: as each sees them, with what JMS calls their place. */
    private static void groups(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect("jms.prefetchPolicy.all=0");
        Session session = Broker.transacted(connection);
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        for (int i = 0; i < 6; i++) {
            Message message = session.createTextMessage("m" + i);
            message.setStringProperty("JMSXGroupID", i % 2 == 0 ? "even" : "odd");
            message.setIntProperty("JMSXGroupSeq", 1 + i / 2);
            producer.send(message);
        }
        session.commit();
        Session other = Broker.transacted(connection);
        // without prefetch each asks for one at a time
        MessageConsumer first = session.createConsumer(broker.queue(session, "q"));
        MessageConsumer second = other.createConsumer(broker.queue(other, "q"));
        List<String> places = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            for (MessageConsumer consumer : List.of(first, second)) {
                Message message = Broker.receive(consumer);
                places.add(Broker.text(message) + " " + message.getStringProperty("JMSXGroupID") + " "
                        + message.getIntProperty("JMSXGroupSeq"));
            }
        }
        session.rollback(); // the first group is free again, from its beginning
        seen.put("places", places);
        first.close();
        seen.put("rolled_back", Broker.receive(second, 3));
        other.commit();
        connection.close();
        seen.put("left", broker.takeAll("q"));
    }

    private static void bodies(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect("jms.deserializationPolicy.allowList=java.util,java.lang");
        Session session = Broker.transacted(connection);
        List<Message> sent = new ArrayList<>();
        sent.add(session.createTextMessage("grüße, 世界 \u0000 end"));
        sent.add(session.createTextMessage(null));
        BytesMessage bytes = session.createBytesMessage();
        bytes.writeBytes(new byte[] {0, 1, (byte) 0xff, 'x'});
        sent.add(bytes);
        MapMessage map = session.createMapMessage();
        map.setString("text", "ä");
        map.setLong("long", Long.MIN_VALUE);
        map.setDouble("double", Math.PI);
        map.setBytes("bytes", new byte[] {9, 8});
        map.setChar("char", 'é');
        sent.add(map);
        StreamMessage stream = session.createStreamMessage();
        stream.writeInt(7);
        stream.writeString("seven");
        stream.writeBoolean(true);
        sent.add(stream);
        sent.add(session.createObjectMessage(new ArrayList<>(List.of("a", 1, 2.5))));
        sent.add(session.createMessage());
        for (Message message : sent) {
            message.setJMSType("kind");
            message.setJMSCorrelationID("ID:correlation");
            message.setJMSReplyTo(broker.queue(session, "replies"));
            message.setStringProperty("string", "wörter");
            message.setBooleanProperty("boolean", true);
            message.setByteProperty("byte", (byte) -1);
            message.setShortProperty("short", Short.MAX_VALUE);
            message.setIntProperty("int", Integer.MIN_VALUE);
            message.setLongProperty("long", Long.MAX_VALUE);
            message.setFloatProperty("float", 1.5f);
            message.setDoubleProperty("double", -0.1);
        }
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        producer.setPriority(7);
        List<Map<String, Object>> before = new ArrayList<>();
        for (Message message : sent) {
            producer.setDeliveryMode(before.isEmpty() ? DeliveryMode.NON_PERSISTENT : DeliveryMode.PERSISTENT);
            producer.send(message);
            if (message instanceof BytesMessage written) {
                written.reset();
            } else if (message instanceof StreamMessage written) {
                written.reset();
            }
            before.add(content(message));
        }
        session.commit();
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        List<Map<String, Object>> after = new ArrayList<>();
        for (int i = 0; i < before.size(); i++) {
            after.add(content(Broker.receive(consumer)));
        }
        session.commit();
        seen.put("sent", before);
        seen.put("received", after);
    }

    /** Everything of a message that its sender decided. */
    private static Map<String, Object> content(Message message) throws Exception {
        Map<String, Object> all = new LinkedHashMap<>();
        all.put("body", body(message));
        all.put("id", message.getJMSMessageID());
        all.put("type", message.getJMSType());
        all.put("timestamp", message.getJMSTimestamp());
        all.put("correlation_id", message.getJMSCorrelationID());
        all.put("reply_to", String.valueOf(message.getJMSReplyTo()));
        all.put("destination", String.valueOf(message.getJMSDestination()));
        all.put("priority", message.getJMSPriority());
        all.put("delivery_mode", message.getJMSDeliveryMode());
        Map<String, Object> properties = new TreeMap<>();
        for (Enumeration<?> names = message.getPropertyNames(); names.hasMoreElements(); ) {
            String name = (String) names.nextElement();
            if (!name.equals("JMSXDeliveryCount")) {
                properties.put(name, message.getObjectProperty(name));
            }
        }
        all.put("properties", properties);
        return all;
    }

    private static Object body(Message message) throws Exception {
        if (message instanceof BytesMessage bytes) {
            byte[] content = new byte[(int) bytes.getBodyLength()];
            bytes.readBytes(content);
            return HexFormat.of().formatHex(content);
        }
        if (message instanceof MapMessage map) {
            Map<String, Object> all = new TreeMap<>();
            for (Enumeration<?> names = map.getMapNames(); names.hasMoreElements(); ) {
                String name = (String) names.nextElement();
                Object value = map.getObject(name);
                all.put(name, value instanceof byte[] octets ? Arrays.toString(octets) : value);
            }
            return all;
        }
        if (message instanceof StreamMessage stream) {
            return List.of(stream.readInt(), stream.readString(), stream.readBoolean());
        }
        if (message instanceof ObjectMessage object) {
            return String.valueOf(object.getObject());
        }
        return message.isBodyAssignableTo(String.class) ? message.getBody(String.class) : "none";
    }

    private static void large(Broker broker, Map<String, Object> seen) throws Exception {
        byte[] content = new byte[5_000_000];
        new Random(5).nextBytes(content);
        Connection connection = broker.connect();
        Session plain = Broker.automatic(connection);
        BytesMessage first = plain.createBytesMessage();
        first.writeBytes(content);
        plain.createProducer(broker.queue(plain, "q")).send(first);

        Session session = Broker.transacted(connection);
        MessageProducer producer = session.createProducer(broker.queue(session, "q"));
        for (boolean commit : new boolean[] {false, true}) {
            BytesMessage second = session.createBytesMessage();
            second.writeBytes(content);
            producer.send(second);
            producer.send(session.createTextMessage("end"));
            if (commit) {
                session.commit();
            } else {
                session.rollback();
            }
        }
        MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"));
        List<String> received = new ArrayList<>();
        Message message;
        while ((message = Broker.receive(consumer)) instanceof BytesMessage bytes) {
            byte[] came = new byte[(int) bytes.getBodyLength()];
            bytes.readBytes(came);
            received.add(digest(came));
        }
        session.commit();
        seen.put("sent", digest(content));
        seen.put("received", received);
    }

    private static String digest(byte[] content) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(content));
    }
}
