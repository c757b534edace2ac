import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;

/** Kafka Streams counts words, exactly once. Arguments: bootstrap.servers, state.dir, input topic, output topic. */
public class WordCount {
    public static void main(String[] arguments) {
        Properties props = new Properties();
        props.put("application.id", "word-count");
        props.put("bootstrap.servers", arguments[0]);
        props.put("state.dir", arguments[1]);
        props.put("processing.guarantee", "exactly_once_v2");
        props.put("default.key.serde", Serdes.StringSerde.class);
        props.put("default.value.serde", Serdes.StringSerde.class);
        // Every single count goes out, so that a reader can tell a repeated record from a lost one.
        props.put("statestore.cache.max.bytes", 0);
        props.put("consumer.auto.offset.reset", "earliest");
        props.put("consumer.session.timeout.ms", 6000);
        props.put("consumer.heartbeat.interval.ms", 1000);

        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(arguments[2]);
        lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .mapValues(String::valueOf)
            .to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));

        KafkaStreams streams = new KafkaStreams(builder.build(), props);
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setUncaughtExceptionHandler(failure -> {
            failure.printStackTrace();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
