import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Commits transactions of one record for each partition, one right after the other: {@code BOOTSTRAP TOPIC PARTITIONS
 * TRANSACTIONAL_ID COUNT}. Prints how many records were sent again, after the first transaction, and the median of the
 * milliseconds that a transaction took.
 */
public class Transactions {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", arguments[3]);
        int partitions = Integer.parseInt(arguments[2]);
        double[] took = new double[Integer.parseInt(arguments[4])];
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            double retriedAtFirst = 0;
            for (int i = 0; i < took.length; i++) {
                long since = System.nanoTime();
                producer.beginTransaction();
                for (int partition = 0; partition < partitions; partition++) {
                    producer.send(new ProducerRecord<>(arguments[1], partition, null, "x"));
                }
                // Java's producer may otherwise send EndTxn before the records: its sender asks whether any are unsent,
                // and decides by the answer after this thread has begun the transaction, sent and asked for the commit.
                // Apache Kafka refuses that with INVALID_TXN_STATE too.
                producer.flush();
                producer.commitTransaction();
                took[i] = (System.nanoTime() - since) / 1e6;
                if (i == 0) {
                    retriedAtFirst = retried(producer);
                }
            }
            java.util.Arrays.sort(took);
            System.out.println((int) (retried(producer) - retriedAtFirst) + " " + took[took.length / 2]);
        }
    }

    private static double retried(KafkaProducer<?, ?> producer) {
        for (var metric : producer.metrics().entrySet()) {
            if (metric.getKey().name().equals("record-retry-total") && metric.getKey().group().equals("producer-metrics")) {
                return (Double) metric.getValue().metricValue();
            }
        }
        throw new IllegalStateException("no record-retry-total");
    }
}
