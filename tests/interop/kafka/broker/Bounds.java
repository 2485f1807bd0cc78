import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import com.fasterxml.jackson.databind.ObjectMapper;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Writes what Apache Kafka accepts for each setting of topics and brokers, as JSON. */
public class Bounds {
    private static final Map<String, String> NODE = Map.of(
        "process.roles", "broker,controller",
        "node.id", "1",
        "controller.quorum.voters", "1@localhost:9093",
        "controller.listener.names", "CONTROLLER",
        "listeners", "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093"
    );

    public static void main(String[] arguments) throws Exception {
        if (!accepts(Bounds::asBroker, "node.id", "1")) {
            throw new IllegalStateException("the settings of a node are not accepted");
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("topic", settings(LogConfig.configKeys(), Bounds::asTopic));
        result.put("broker", settings(AbstractKafkaConfig.CONFIG_DEF.configKeys(), Bounds::asBroker));
        new ObjectMapper().writeValue(System.out, result);
    }

    private interface Check {
        void accept(String name, String value);
    }

    private static void asTopic(String name, String value) {
        LogConfig.validate(Map.of(name, value));
    }

    private static void asBroker(String name, String value) {
        Map<String, String> settings = new HashMap<>(NODE);
        settings.put(name, value);
        settings.put("controller.quorum.voters", settings.get("node.id") + "@localhost:9093");
        new KafkaConfig(settings, false);
    }

    private static boolean accepts(Check check, String name, String value) {
        try {
            check.accept(name, value);
            return true;
        } catch (RuntimeException refusal) {
            return false;
        }
    }

    private static Map<String, Object> settings(Map<String, ConfigDef.ConfigKey> keys, Check check) throws Exception {
        Map<String, Object> settings = new TreeMap<>();
        for (ConfigDef.ConfigKey key : keys.values()) {
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("type", key.type.name());
            if (key.validator instanceof ConfigDef.Range) {
                facts.put("low", bound(key.validator, "min"));
                facts.put("high", bound(key.validator, "max"));
            } else if (key.validator != null) {
                facts.put("valid", key.validator.toString());
            }
            if (key.type == ConfigDef.Type.INT || key.type == ConfigDef.Type.LONG || key.type == ConfigDef.Type.SHORT) {
                // What the definition does not say, also not what depends on the defaults of other settings.
                facts.put("refused", refused(key.name, check));
            }
            if (key.type == ConfigDef.Type.LIST) {
                facts.put("empty", accepts(check, key.name, ""));
            }
            settings.put(key.name, facts);
        }
        return settings;
    }

    /** Of some small numbers. */
    private static List<Integer> refused(String name, Check check) {
        List<Integer> refused = new ArrayList<>();
        for (int value = -3; value <= 12; value++) {
            if (!accepts(check, name, Integer.toString(value))) {
                refused.add(value);
            }
        }
        return refused;
    }

    private static Object bound(ConfigDef.Validator range, String name) throws Exception {
        Field field = ConfigDef.Range.class.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(range);
    }
}
