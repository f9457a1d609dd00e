package coordinator.client;

import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * A message to post in SQL: {@code Post.json("orders", "{\"order\": 4711}").messageId("order-4711")}; or many of one
 * address and type in one statement, in the order of their bodies: what else is said of them holds for each.
 */
public final class Post {
    private final String address;
    private final String type;
    private final Object body;
    private final Map<String, Object> properties = new LinkedHashMap<>();
    private final Map<String, Object> headers = new LinkedHashMap<>();
    private String groupId;
    private Duration delay;
    private Instant deliverAt;
    private Duration ttl;
    private Integer priority;

    private Post(String address, String type, Object body) {
        this.address = address;
        this.type = type;
        this.body = body;
    }

    /** An amqp-value of type string. */
    public static Post text(String address, String body) {
        return new Post(address, "text", body);
    }

    /** Data of the content-type application/json. */
    public static Post json(String address, String body) {
        return new Post(address, "jsonb", body);
    }

    /** A section of data. */
    public static Post octets(String address, byte[] body) {
        return new Post(address, "bytea", body.clone());
    }

    /** Many of {@link #text}. */
    public static Post texts(String address, List<String> bodies) {
        return new Post(address, "text[]", bodies.toArray(String[]::new));
    }

    /** Many of {@link #json}. */
    public static Post jsons(String address, List<String> bodies) {
        return new Post(address, "jsonb[]", bodies.toArray(String[]::new));
    }

    /** Many of {@link #octets}. */
    public static Post manyOctets(String address, List<byte[]> bodies) {
        return new Post(address, "bytea[]", bodies.stream().map(byte[]::clone).toArray(byte[][]::new));
    }

    public Post messageId(String value) {
        return property("message-id", value);
    }

    /** A property of the message by its AMQP name, such as {@code subject}: a string; times are ms since 1970. */
    public Post property(String name, Object value) {
        properties.put(name, value);
        return this;
    }

    /** An application property: a string, a number, a boolean or null. */
    public Post header(String name, Object value) {
        headers.put(name, value);
        return this;
    }

    /** On an address of kind {@code fifo} the messages of a group go out in order. */
    public Post groupId(String value) {
        groupId = value;
        return this;
    }

    public Post delay(Duration value) {
        delay = value;
        return this;
    }

    public Post deliverAt(Instant value) {
        deliverAt = value;
        return this;
    }

    /** From the call on; it is not delivered after. */
    public Post ttl(Duration value) {
        ttl = value;
        return this;
    }

    /** 0 to 255; 4 where nothing is said. */
    public Post priority(int value) {
        priority = value;
        return this;
    }

    /** The function that posts it. */
    String function() {
        return type.endsWith("[]") ? "coordinator.post_many" : "coordinator.post";
    }

    /** Of the body or the bodies, in PostgreSQL. */
    String type() {
        return type;
    }

    /** The arguments of the function in their order. */
    Object[] values() {
        return new Object[] {
            address,
            body,
            properties.isEmpty() ? null : json(properties),
            headers.isEmpty() ? null : json(headers),
            groupId,
            delay == null ? null : (double) delay.toMillis(),
            deliverAt == null ? null : OffsetDateTime.ofInstant(deliverAt, ZoneOffset.UTC),
            ttl == null ? null : (double) ttl.toMillis(),
            priority
        };
    }

    private static String json(Map<String, Object> values) {
        return values.entrySet().stream()
                .map(each -> quoted(each.getKey()) + ":" + json(each.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
    }

    private static String json(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof String text) {
            return quoted(text);
        }
        throw new IllegalArgumentException(
                "a value of " + value.getClass().getName() + "; expected a string, a number, a boolean or null");
    }

    private static String quoted(String text) {
        StringBuilder made = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                made.append('\\').append(each);
            } else if (each < ' ') {
                made.append("\\u%04x".formatted((int) each));
            } else {
                made.append(each);
            }
        }
        return made.append('"').toString();
    }
}
