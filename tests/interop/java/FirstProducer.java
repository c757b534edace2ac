import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** The README's producer: three properties, one record, closed by try. Arguments: bootstrap.servers, topic. */
public class FirstProducer {
    static class MessageProducer extends KafkaProducer<String, String> {
        MessageProducer(Properties props) {
            super(props);
        }
    }

    public static void main(String[] arguments) {
        Properties props = new Properties();
        props.put("bootstrap.servers", arguments[0]);
        props.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        props.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");

        try (MessageProducer producer = new MessageProducer(props)) {
            ProducerRecord<String, String> record = new ProducerRecord<>(arguments[1], "key1", "Hello World!");
            producer.send(record);
        }
    }
}
