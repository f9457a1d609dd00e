package acceptance;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import java.util.Map;

/** Consumers and browsers that choose. */
final class SelectorCases {
    private SelectorCases() {}

    static Map<String, Driver.Case> all() {
        return Map.of(
                "selectors", SelectorCases::selectors,
                "request-reply", SelectorCases::requestReply,
                "selecting-browser", SelectorCases::browser,
                "subscription-selectors", SelectorCases::subscriptions,
                "bad-selector", SelectorCases::badSelector);
    }

    private static void sendTen(Session session, MessageProducer producer) throws JMSException {
        sendTen(session, producer, 10);
    }

    /** Ten messages "m0" to "m9" with properties of several types; from number {@code urgent} on with priority 8. */
    private static void sendTen(Session session, MessageProducer producer, int urgent) throws JMSException {
        for (int i = 0; i < 10; i++) {
            Message message = session.createTextMessage("m" + i);
            message.setIntProperty("n", i);
            message.setDoubleProperty("half", i / 2.0);
            message.setStringProperty("kind", i % 2 == 0 ? "even" : "odd");
            message.setBooleanProperty("large", i >= 5);
            message.setJMSType("type " + i);
            producer.setPriority(i < urgent ? Message.DEFAULT_PRIORITY : 8);
            producer.send(message);
        }
    }

    private static void selectors(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session session = Broker.automatic(connection);
        sendTen(session, session.createProducer(broker.queue(session, "q")), 8);
        for (String[] each :
                new String[][] {
                    {"JMSPriority > 7 AND large", "m9"},
                    {"kind LIKE 'e%n' AND n BETWEEN 2 AND 4", "m4"},
                    {"JMSType IN ('type 1', 'type 3') AND nothing IS NULL", "m3"},
                    {"NOT large AND half = 2.5 OR half = 3", "m6"},
                }) {
            MessageConsumer consumer = session.createConsumer(broker.queue(session, "q"), each[0]);
            seen.put(each[0], Broker.receiveUpTo(consumer, each[1]));
            consumer.close();
        }
        seen.put("left", broker.takeAll("q"));
    }

    /** Many clients share one reply queue, each waits for its own answer. */
    private static void requestReply(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session session = Broker.automatic(connection);
        MessageProducer requests = session.createProducer(broker.queue(session, "requests"));
        List<MessageConsumer> waiting = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            Message request = session.createTextMessage("question " + i);
            requests.send(request);
            String selector = "JMSCorrelationID = '" + request.getJMSMessageID() + "'";
            waiting.add(session.createConsumer(broker.queue(session, "replies"), selector));
        }
        Session server = Broker.transacted(broker.connect());
        MessageConsumer asked = server.createConsumer(broker.queue(server, "requests"));
        MessageProducer replies = server.createProducer(broker.queue(server, "replies"));
        List<Message> questions = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            questions.add(Broker.receive(asked));
        }
        Collections.reverse(questions);
        for (Message question : questions) {
            Message reply = server.createTextMessage("answer to " + Broker.text(question));
            reply.setJMSCorrelationID(question.getJMSMessageID());
            replies.send(reply);
        }
        server.commit();
        List<String> answers = new ArrayList<>();
        for (MessageConsumer each : waiting) {
            answers.add(Broker.text(Broker.receive(each)));
        }
        seen.put("answers", answers);
    }

    private static void browser(Broker broker, Map<String, Object> seen) throws Exception {
        Session session = Broker.automatic(broker.connect());
        sendTen(session, session.createProducer(broker.queue(session, "q")));
        List<String> texts = new ArrayList<>();
        try (QueueBrowser browser = session.createBrowser(broker.queue(session, "q"), "kind = 'odd' AND n > 3")) {
            Enumeration<?> found = browser.getEnumeration();
            while (found.hasMoreElements()) {
                texts.add(Broker.text((Message) found.nextElement()));
            }
        }
        seen.put("browsed", texts);
        seen.put("left", broker.takeAll("q").size());
    }

    private static void subscriptions(Broker broker, Map<String, Object> seen) throws Exception {
        Connection connection = broker.connect();
        Session session = Broker.automatic(connection);
        Topic topic = session.createTopic(broker.address("t"));
        MessageConsumer odd = session.createConsumer(topic, "kind = 'odd'");
        MessageConsumer notOwn = session.createConsumer(topic, null, true);
        sendTen(session, session.createProducer(topic));
        Session other = Broker.automatic(broker.connect());
        other.createProducer(topic).send(other.createTextMessage("of another"));
        seen.put("odd", Broker.receiveUpTo(odd, "m9"));
        seen.put("not_own", Broker.text(Broker.receive(notOwn)));
    }

    private static void badSelector(Broker broker, Map<String, Object> seen) throws Exception {
        // the client's own check is left out: the service is asked
        Session session = Broker.automatic(broker.connect("jms.validateSelector=false"));
        try {
            session.createConsumer(broker.queue(session, "q"), "n = 1 AND");
            seen.put("error", "none");
        } catch (JMSException error) {
            seen.put("error", error.getMessage());
        }
    }
}
