"""kafka-python, written in Python throughout, as a driver."""

from collections.abc import Sequence
from itertools import islice

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.compat.client_driver import BIG_BYTES, SECONDS_MAX, Read, Sent


class KafkaPython:
    """kafka-python, written in Python throughout."""

    name = "kafka-python"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def produce(
        self,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        idempotent: bool = False,
        batched: bool = True,
    ) -> list[int]:
        with KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=20 if batched else 0,
            max_request_size=BIG_BYTES,
        ) as producer:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            return [future.get(SECONDS_MAX).offset for future in futures]

    def _consumer(self) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            enable_auto_commit=False,
            max_partition_fetch_bytes=BIG_BYTES,
            fetch_max_bytes=BIG_BYTES,
            consumer_timeout_ms=int(SECONDS_MAX * 1000),
            check_crcs=True,
        )

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Read]:
        with self._consumer() as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            return [
                Read(
                    message.offset,
                    message.value,
                    message.key,
                    tuple(message.headers),
                    message.timestamp,
                    message.timestamp_type,
                )
                for message in islice(consumer, count)
            ]

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        place = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
        return None if found is None else found.offset
