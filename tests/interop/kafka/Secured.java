import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Apache Kafka's producer and consumer, with the settings of a file: {@code write FILE TOPIC TRANSACTIONAL_ID},
 * {@code read FILE TOPIC GROUP COUNT} or {@code refused FILE TOPIC}.
 *
 * "write" writes each line of standard input, once it is acknowledged prints it, and commits at the end of the input, if
 * it has a transactional id ("-" is none), after a transaction that it aborts. "read" prints the first COUNT committed
 * values, and commits their positions. "refused" prints the class of the error that a write ends with.
 */
public class Secured {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (var reader = Files.newBufferedReader(Path.of(arguments[1]))) {
            settings.load(reader);
        }
        switch (arguments[0]) {
            case "write" -> write(settings, arguments[2], arguments[3]);
            case "read" -> read(settings, arguments[2], arguments[3], Integer.parseInt(arguments[4]));
            case "refused" -> refused(settings, arguments[2]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static void write(Properties settings, String topic, String id) throws Exception {
        boolean transactional = !id.equals("-");
        if (transactional) {
            settings.put("transactional.id", id);
        }
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            if (transactional) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "aborted")).get();
                producer.abortTransaction();
                producer.beginTransaction();
            }
            var input = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                sent.add(producer.send(new ProducerRecord<>(topic, line)));
                if (!input.ready()) {
                    for (var each : sent) {
                        each.get();
                    }
                    System.out.println(line);
                }
            }
            if (transactional) {
                producer.commitTransaction();
            }
        }
    }

    private static void read(Properties settings, String topic, String group, int count) throws IOException {
        settings.put("group.id", group);
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (int found = 0; found < count; ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(record.value());
                    found++;
                }
            }
            consumer.commitSync();
        }
    }

    private static void refused(Properties settings, String topic) throws InterruptedException {
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, "refused")).get();
            System.out.println("accepted");
        } catch (ExecutionException failure) {
            System.out.println(failure.getCause().getClass().getSimpleName());
        }
    }
}
