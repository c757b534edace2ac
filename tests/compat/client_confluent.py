"""confluent-kafka, and with it librdkafka, as a driver."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.compat.client_driver import BIG_BYTES, SECONDS_MAX, Read, Sent


class Confluent:
    """confluent-kafka, and with it librdkafka."""

    name = "confluent-kafka"

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
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 20 if batched else 0,
                "message.max.bytes": BIG_BYTES,
                "message.timeout.ms": int(SECONDS_MAX * 1000),
            }
        )
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                raise KafkaException(error)
            offsets.append(message.offset())

        for record in records:
            extra = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            headers = list(record.headers)
            producer.produce(
                topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=delivered,
                headers=headers,
                **extra,
            )
        assert producer.flush(SECONDS_MAX) == 0, "everything is delivered or refused in time"
        return offsets

    def _consumer(self) -> Any:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"never-joined-{uuid4().hex}",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": BIG_BYTES,
                "fetch.max.bytes": BIG_BYTES,
                "receive.message.max.bytes": BIG_BYTES + 512,
                "check.crcs": True,
            }
        )

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Read]:
        consumer = self._consumer()
        consumer.assign([TopicPartition(topic, partition, offset)])
        read: list[Read] = []
        try:
            while len(read) < count:
                message = consumer.poll(SECONDS_MAX)
                assert message is not None, f"{len(read)} of {count} records arrived"
                if message.error():
                    raise KafkaException(message.error())
                kind, timestamp_ms = message.timestamp()
                headers = tuple(message.headers() or ())
                # librdkafka counts its kinds from 1; 0 is "none".
                read.append(Read(message.offset(), message.value(), message.key(), headers, timestamp_ms, kind - 1))
        finally:
            consumer.close()
        return read

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS_MAX)
        finally:
            consumer.close()
        return low, high

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        consumer = self._consumer()
        try:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=SECONDS_MAX)
        finally:
            consumer.close()
        offset: int = found.offset
        return None if offset < 0 else offset
