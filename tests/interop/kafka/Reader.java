import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Follows topics from their beginning until standard input ends; then reads all that is there once more.
 *
 * Topics may come, go and be made anew meanwhile, and records may be deleted before they are read. Prints how many
 * records were followed, and how many there were at the end. What cannot be read, or is not reached, is an exception.
 */
public class Reader {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long REFRESH_MS = 2_000;
    private static final long PROGRESS_MS = 30_000;

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Set<String> topics;
    private final Map<TopicPartition, Long> behind = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        AtomicBoolean ended = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (IOException closed) {
                // It has ended as well.
            }
            ended.set(true);
        });
        input.setDaemon(true);
        input.start();
        Reader reader = new Reader(arguments);
        long followed = reader.follow(ended);
        System.out.println(followed + " " + reader.readAll());
    }

    private Reader(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("allow.auto.create.topics", "false");
        // A few large answers rather than one for each batch.
        settings.put("fetch.min.bytes", "1000000");
        settings.put("fetch.max.wait.ms", "250");
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        topics = new HashSet<>();
        for (int i = 1; i < arguments.length; i++) {
            topics.add(arguments[i]);
        }
    }

    private long follow(AtomicBoolean ended) {
        long count = 0;
        long refreshed = System.nanoTime();
        long checked = refreshed;
        assign();
        while (!ended.get()) {
            count += poll();
            if (elapsed(refreshed) > REFRESH_MS) {
                refreshed = System.nanoTime();
                assign();
            }
            if (elapsed(checked) > PROGRESS_MS) {
                checked = System.nanoTime();
                checkProgress();
            }
        }
        return count;
    }

    private long readAll() {
        assign();
        consumer.seekToBeginning(consumer.assignment());
        Map<TopicPartition, Long> ends = consumer.endOffsets(consumer.assignment());
        long count = 0;
        long checked = System.nanoTime();
        while (!isAt(ends)) {
            count += poll();
            if (elapsed(checked) > PROGRESS_MS) {
                checked = System.nanoTime();
                checkProgress();
            }
        }
        return count;
    }

    private boolean isAt(Map<TopicPartition, Long> ends) {
        return ends.entrySet().stream().allMatch(end -> consumer.position(end.getKey()) >= end.getValue());
    }

    private int poll() {
        if (consumer.assignment().isEmpty()) {
            sleep();
            return 0;
        }
        return consumer.poll(POLL).count();
    }

    private static void sleep() {
        try {
            Thread.sleep(POLL.toMillis());
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    private void assign() {
        Set<TopicPartition> found = new HashSet<>();
        consumer.listTopics().forEach((topic, partitions) -> {
            if (topics.contains(topic)) {
                for (PartitionInfo each : partitions) {
                    found.add(new TopicPartition(topic, each.partition()));
                }
            }
        });
        if (!found.equals(consumer.assignment())) {
            consumer.assign(found);
        }
    }

    /** Each partition that was behind its end the last time has moved since. */
    private void checkProgress() {
        Map<TopicPartition, Long> before = new HashMap<>(behind);
        behind.clear();
        for (TopicPartition each : consumer.assignment()) {
            if (consumer.currentLag(each).orElse(0) > 0) {
                long position = consumer.position(each);
                behind.put(each, position);
                if (Long.valueOf(position).equals(before.get(each))) {
                    throw new IllegalStateException("no progress in " + each + " at offset " + position);
                }
            }
        }
    }

    private static long elapsed(long sinceNs) {
        return (System.nanoTime() - sinceNs) / 1_000_000;
    }
}
