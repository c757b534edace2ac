import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;

/** The README's consumer: four properties, a loop that never ends. Arguments: bootstrap.servers, topic, properties. */
public class FirstConsumer {
    static class MessageConsumer extends KafkaConsumer<String, String> {
        MessageConsumer(Properties props) {
            super(props);
        }
    }

    public static void main(String[] arguments) {
        Properties props = new Properties();
        props.put("bootstrap.servers", arguments[0]);
        props.put("group.id", "test-group");
        props.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        props.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        for (String more : Arrays.asList(arguments).subList(2, arguments.length)) {
            props.put(more.split("=")[0], more.split("=")[1]);
        }

        try (MessageConsumer consumer = new MessageConsumer(props)) {
            consumer.subscribe(Arrays.asList(arguments[1]));
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<String, String> record : records) {
                    System.out.printf("Received: %s%n", record.value());
                }
            }
        }
    }
}
