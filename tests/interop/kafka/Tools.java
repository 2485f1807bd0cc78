import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Apache Kafka's command line tools one after another in one JVM, which saves a start for each.
 *
 * A line of standard input is a command: the file that is its input (or nothing), its class, its arguments, with tabs
 * between them. The answer is what it has printed, and a line with an end-of-transmission mark and its exit code.
 */
public class Tools {
    private static final class Ended extends Error {
        Ended() {
            super("the tool has ended", null, false, false);
        }
    }

    private static Integer code;
    private static final List<Runnable> atEnd = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // A tool that wants to end its process must not end this one.
        Exit.Procedure end = (said, message) -> {
            // Some tools catch this one too, and end once more because of it: their first word counts.
            code = code == null ? said : code;
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        Exit.setShutdownHookAdder((name, hook) -> atEnd.add(hook));
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(out);
            System.setErr(out);
            code = null;
            run(line.split("\t", -1), out);
            printed.writeTo(answers);
            answers.println("\n\u0004" + (code == null ? 0 : code));
            answers.flush();
        }
    }

    private static void run(String[] command, PrintStream out) throws Exception {
        if (!command[0].isEmpty()) {
            System.setIn(Files.newInputStream(Path.of(command[0])));
        }
        String[] arguments = new String[command.length - 2];
        System.arraycopy(command, 2, arguments, 0, arguments.length);
        try {
            Class.forName(command[1]).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof Ended)) {
                failure.getCause().printStackTrace(out);
                code = 1;
            }
        }
        // Producers are closed, and what they have not sent is sent, in here.
        atEnd.forEach(Runnable::run);
        atEnd.clear();
    }
}
