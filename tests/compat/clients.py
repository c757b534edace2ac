"""The three Python clients behind one face, so that every promise is asked of each, and across them.

A driver sends and reads records with plain settings; what a client cannot do is not papered over here.
"""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

Headers = tuple[tuple[str, bytes | None], ...]

# Everything here happens on loopback within milliseconds; past this something hangs.
SECONDS_MAX = 30.0
BIG_BYTES = 32 * 1024 * 1024  # what a client is told to accept when a test sends records of several megabytes

CREATE_TIME, LOG_APPEND_TIME = 0, 1


class Sent(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0


class Read(NamedTuple):
    offset: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: int
    timestamp_type: int


class Client(Protocol):
    name: str

    def produce(self, topic: str, records: Sequence[Sent], **settings: Any) -> list[int]:
        """Sends all with acks=all and returns the offset of each; a refusal comes out as the client's error."""

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Read]:
        """So many records from an offset on, by assignment, without a group."""

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The first offset and the one after the last."""

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        """The first offset whose record is not older than the time; None if there is none."""


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
        from confluent_kafka import KafkaException, Producer

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
        from confluent_kafka import Consumer

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
        from confluent_kafka import KafkaException, TopicPartition

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
        from confluent_kafka import TopicPartition

        consumer = self._consumer()
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS_MAX)
        finally:
            consumer.close()
        return low, high

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        from confluent_kafka import TopicPartition

        consumer = self._consumer()
        try:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=SECONDS_MAX)
        finally:
            consumer.close()
        offset: int = found.offset
        return None if offset < 0 else offset


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
        from kafka import KafkaProducer

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

    def _consumer(self) -> Any:
        from kafka import KafkaConsumer

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
        from kafka import TopicPartition

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
        from kafka import TopicPartition

        place = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        from kafka import TopicPartition

        place = TopicPartition(topic, partition)
        with self._consumer() as consumer:
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
        return None if found is None else found.offset


class AioKafka:
    """aiokafka: asyncio, and only the old, inflexible versions of the core APIs."""

    name = "aiokafka"

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
        return asyncio.run(self._produce(topic, records, codec, idempotent, 20 if batched else 0))

    async def _produce(
        self, topic: str, records: Sequence[Sent], codec: str, idempotent: bool, linger_ms: int
    ) -> list[int]:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=linger_ms,
            max_request_size=BIG_BYTES,
            request_timeout_ms=int(SECONDS_MAX * 1000),
        )
        async with producer:
            futures = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            return [(await future).offset for future in futures]

    def _consumer(self) -> Any:
        from aiokafka import AIOKafkaConsumer

        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            enable_auto_commit=False,
            max_partition_fetch_bytes=BIG_BYTES,
            fetch_max_bytes=BIG_BYTES,
            check_crcs=True,
        )

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Read]:
        return asyncio.run(asyncio.wait_for(self._consume(topic, count, partition, offset), SECONDS_MAX))

    async def _consume(self, topic: str, count: int, partition: int, offset: int) -> list[Read]:
        from aiokafka import TopicPartition

        read: list[Read] = []
        async with self._consumer() as consumer:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            while len(read) < count:
                message = await consumer.getone()
                read.append(
                    Read(
                        message.offset,
                        message.value,
                        message.key,
                        tuple(message.headers),
                        message.timestamp,
                        message.timestamp_type,
                    )
                )
        return read

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        return asyncio.run(self._offsets(topic, partition))

    async def _offsets(self, topic: str, partition: int) -> tuple[int, int]:
        from aiokafka import TopicPartition

        place = TopicPartition(topic, partition)
        async with self._consumer() as consumer:
            first = await consumer.beginning_offsets([place])
            end = await consumer.end_offsets([place])
        return first[place], end[place]

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        return asyncio.run(self._offset_at(topic, timestamp_ms, partition))

    async def _offset_at(self, topic: str, timestamp_ms: int, partition: int) -> int | None:
        from aiokafka import TopicPartition

        place = TopicPartition(topic, partition)
        async with self._consumer() as consumer:
            found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
        return None if found is None else found.offset


CLIENTS: dict[str, type[Confluent] | type[KafkaPython] | type[AioKafka]] = {
    kind.name: kind for kind in (Confluent, KafkaPython, AioKafka)
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
