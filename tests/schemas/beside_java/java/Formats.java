import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.EnumValueDescriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.avro.Conversions;
import org.apache.avro.Schema;
import org.apache.avro.data.TimeConversions;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericEnumSymbol;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

/**
 * Decodes with Avro's and Protobuf's Java implementations: a line of JSON with cases in, a line with their answers out.
 * A value is a list of its kind and itself, so that no two kinds look alike; an error is the kind "!".
 */
public final class Formats {
  private static final ObjectMapper JSON = new ObjectMapper();

  private static GenericData logical() {
    GenericData made = new GenericData();
    made.addLogicalTypeConversion(new Conversions.DecimalConversion());
    made.addLogicalTypeConversion(new Conversions.UUIDConversion());
    made.addLogicalTypeConversion(new TimeConversions.DateConversion());
    made.addLogicalTypeConversion(new TimeConversions.TimeMillisConversion());
    made.addLogicalTypeConversion(new TimeConversions.TimeMicrosConversion());
    made.addLogicalTypeConversion(new TimeConversions.TimestampMillisConversion());
    made.addLogicalTypeConversion(new TimeConversions.TimestampMicrosConversion());
    return made;
  }

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      List<Object> answers = new ArrayList<>();
      JsonNode cases = JSON.readTree(line);
      // Avro keeps what it has made of each pair of schemas as long as the thread lives, and the data.
      Thread thread =
          new Thread(
              () -> {
                GenericData plain = new GenericData();
                GenericData logical = logical();
                for (JsonNode each : cases) {
                  answers.add(each.has("writer") ? avro(each, plain, logical) : protobuf(each));
                }
              });
      thread.start();
      thread.join();
      if (answers.size() != cases.size()) throw new IllegalStateException("a case has ended the thread of its batch");
      out.println(JSON.writeValueAsString(answers));
      out.flush();
    }
  }

  private static Object refused(Throwable error) {
    return List.of("!", error.getClass().getSimpleName(), String.valueOf(error.getMessage()));
  }

  // --- Avro ----------------------------------------------------------------------------------------------------

  private static Object avro(JsonNode asked, GenericData plain, GenericData logical) {
    Schema writer;
    Schema reader;
    try {
      writer = new Schema.Parser().parse(asked.get("writer").asText());
    } catch (Exception | StackOverflowError error) {
      return Map.of("writer", refused(error));
    }
    try {
      reader = new Schema.Parser().parse(asked.get("reader").asText());
    } catch (Exception | StackOverflowError error) {
      return Map.of("reader", refused(error));
    }
    List<Object> values = new ArrayList<>();
    for (JsonNode each : asked.get("values")) {
      byte[] raw = HexFormat.of().parseHex(each.asText());
      values.add(
          Map.of(
              "own", avroValue(writer, writer, plain, raw),
              "plain", avroValue(writer, reader, plain, raw),
              "logical", avroValue(writer, reader, logical, raw)));
    }
    return Map.of("values", values);
  }

  private static Object avroValue(Schema writer, Schema reader, GenericData data, byte[] raw) {
    try {
      BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(raw, null);
      Object value = new GenericDatumReader<Object>(writer, reader, data).read(null, decoder);
      return decoder.isEnd() ? tagged(value) : List.of("!", "Trailing", "bytes behind the value");
    } catch (Exception | StackOverflowError | OutOfMemoryError error) {
      return refused(error);
    }
  }

  private static Object tagged(Object value) {
    if (value == null) return List.of("null");
    if (value instanceof Boolean) return List.of("boolean", value);
    if (value instanceof Integer || value instanceof Long) return List.of("number", value);
    if (value instanceof Float) return List.of("float", Float.floatToRawIntBits((Float) value));
    if (value instanceof Double) return List.of("double", Double.doubleToRawLongBits((Double) value));
    if (value instanceof CharSequence) return List.of("string", value.toString());
    if (value instanceof BigDecimal) {
      BigDecimal number = (BigDecimal) value;
      return List.of("decimal", number.unscaledValue().toString(), number.scale());
    }
    if (value instanceof LocalDate) return List.of("date", ((LocalDate) value).toEpochDay());
    if (value instanceof LocalTime) return List.of("time", ((LocalTime) value).toNanoOfDay());
    if (value instanceof Instant) {
      Instant at = (Instant) value;
      BigInteger nanos = BigInteger.valueOf(at.getEpochSecond()).multiply(BigInteger.valueOf(1_000_000_000L));
      return List.of("instant", nanos.add(BigInteger.valueOf(at.getNano())));
    }
    if (value instanceof UUID) return List.of("uuid", value.toString());
    if (value instanceof GenericEnumSymbol) return List.of("enum", value.toString());
    if (value instanceof GenericFixed) return List.of("bytes", HexFormat.of().formatHex(((GenericFixed) value).bytes()));
    if (value instanceof ByteBuffer) {
      ByteBuffer buffer = ((ByteBuffer) value).duplicate();
      byte[] bytes = new byte[buffer.remaining()];
      buffer.get(bytes);
      return List.of("bytes", HexFormat.of().formatHex(bytes));
    }
    if (value instanceof IndexedRecord) {
      IndexedRecord record = (IndexedRecord) value;
      Map<String, Object> fields = new LinkedHashMap<>();
      for (Schema.Field each : record.getSchema().getFields()) {
        fields.put(each.name(), tagged(record.get(each.pos())));
      }
      return List.of("record", fields);
    }
    if (value instanceof Map) {
      Map<String, Object> entries = new LinkedHashMap<>();
      ((Map<?, ?>) value).forEach((key, each) -> entries.put(key.toString(), tagged(each)));
      return List.of("map", entries);
    }
    List<Object> items = new ArrayList<>();
    for (Object each : (Iterable<?>) value) items.add(tagged(each));
    return List.of("array", items);
  }

  // --- Protobuf ------------------------------------------------------------------------------------------------

  private static Object protobuf(JsonNode asked) {
    Descriptor descriptor;
    try {
      byte[] files = Base64.getDecoder().decode(asked.get("descriptors").asText());
      FileDescriptorProto file = FileDescriptorSet.parseFrom(files).getFile(0);
      descriptor = FileDescriptor.buildFrom(file, new FileDescriptor[0]).findMessageTypeByName("M");
    } catch (Exception error) {
      return Map.of("reader", refused(error));
    }
    List<Object> values = new ArrayList<>();
    for (JsonNode each : asked.get("values")) {
      try {
        byte[] raw = HexFormat.of().parseHex(each.asText());
        values.add(message(DynamicMessage.parseFrom(descriptor, raw)));
      } catch (Exception error) {
        values.add(refused(error));
      }
    }
    return Map.of("values", values);
  }

  private static Object message(Message message) {
    Map<String, Object> fields = new LinkedHashMap<>();
    for (FieldDescriptor field : message.getDescriptorForType().getFields()) {
      fields.put(field.getName(), field(message, field));
    }
    fields.put("?", unknown(message));
    return List.of("record", fields);
  }

  private static Object field(Message message, FieldDescriptor field) {
    if (field.isMapField()) {
      Map<String, Object> entries = new LinkedHashMap<>();
      for (Object each : (List<?>) message.getField(field)) {
        Message entry = (Message) each;
        FieldDescriptor value = entry.getDescriptorForType().findFieldByName("value");
        FieldDescriptor key = entry.getDescriptorForType().findFieldByName("key");
        String name = String.valueOf(((List<?>) single(entry.getField(key), key)).get(1));
        entries.put(name, single(entry.getField(value), value));
      }
      return List.of("map", entries);
    }
    if (field.isRepeated()) {
      List<Object> items = new ArrayList<>();
      for (Object each : (List<?>) message.getField(field)) items.add(single(each, field));
      return List.of("array", items);
    }
    if (field.hasPresence() && !message.hasField(field)) return List.of("null");
    return single(message.getField(field), field);
  }

  private static Object single(Object value, FieldDescriptor field) {
    switch (field.getType()) {
      case GROUP:
      case MESSAGE:
        return message((Message) value);
      case ENUM:
        EnumValueDescriptor named = (EnumValueDescriptor) value;
        return List.of("enum", named.getIndex() < 0 ? String.valueOf(named.getNumber()) : named.getName());
      case UINT32:
      case FIXED32:
        return List.of("number", Integer.toUnsignedLong((Integer) value));
      case UINT64:
      case FIXED64:
        return List.of("decimal", Long.toUnsignedString((Long) value), 0);
      case BYTES:
        return List.of("bytes", HexFormat.of().formatHex(((ByteString) value).toByteArray()));
      default:
        return tagged(value);
    }
  }

  private static List<Integer> unknown(Message message) {
    return new ArrayList<>(new java.util.TreeSet<>(message.getUnknownFields().asMap().keySet()));
  }
}
