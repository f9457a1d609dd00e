package acceptance;

import java.util.Iterator;
import java.util.Map;

/** Writes maps, iterables, strings, numbers, booleans and null as JSON. */
final class Json {
    private Json() {}

    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> map) {
            String separator = "";
            out.append('{');
            for (Map.Entry<?, ?> item : map.entrySet()) {
                out.append(separator);
                text(String.valueOf(item.getKey()), out);
                out.append(": ");
                write(item.getValue(), out);
                separator = ", ";
            }
            out.append('}');
        } else if (value instanceof Iterable<?> items) {
            out.append('[');
            for (Iterator<?> each = items.iterator(); each.hasNext(); ) {
                write(each.next(), out);
                if (each.hasNext()) {
                    out.append(", ");
                }
            }
            out.append(']');
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            text(value.toString(), out);
        }
    }

    private static void text(String value, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
