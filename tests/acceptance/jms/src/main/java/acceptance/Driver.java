package acceptance;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;

/**
 * Runs one case against a service: {@code Driver CASE URL}. Prints one line of JSON with what the client saw and exits
 * with 0; 1: the case threw (the stack trace is on stderr); 2: no such case. The test that started it judges what was
 * seen.
 *
 * <p>A case that needs something done to the service in the middle prints a line {@code {"step": NAME}} and waits for a
 * line on its standard input.
 */
public final class Driver {
    /** One case: what it saw goes into {@code seen}. */
    interface Case {
        void run(Broker broker, Map<String, Object> seen) throws Exception;
    }

    private static final BufferedReader STDIN =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private Driver() {}

    /** Tells the test that {@code name} is reached and waits until it lets us go on. */
    static void step(String name) throws Exception {
        System.out.println(Json.write(Map.of("step", name)));
        if (STDIN.readLine() == null) {
            throw new IllegalStateException("standard input was closed at step " + name);
        }
    }

    public static void main(String[] args) {
        Map<String, Case> cases = new TreeMap<>();
        cases.putAll(TransactionCases.all());
        cases.putAll(DeliveryCases.all());
        cases.putAll(MessageCases.all());
        cases.putAll(SubscriptionCases.all());
        cases.putAll(FailureCases.all());
        cases.putAll(SelectorCases.all());
        cases.putAll(ClientIdCases.all());
        cases.putAll(CheckCases.all());
        cases.put("login", LoginCase::run);
        cases.put("login renewed", LoginCase::renewed);
        cases.put("permissions", LoginCase::permissions);
        if (args.length != 2 || !cases.containsKey(args[0])) {
            System.err.println("usage: Driver CASE URL, with CASE one of " + cases.keySet());
            System.exit(2);
        }
        Map<String, Object> seen = new LinkedHashMap<>();
        try (Broker broker = new Broker(args[1], args[0])) {
            cases.get(args[0]).run(broker, seen);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.out.println(Json.write(seen));
        System.exit(0);
    }
}
