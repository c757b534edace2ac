"""aiokafka as a driver: asyncio, and only the old, inflexible versions of the core APIs."""

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.compat.client_driver import BIG_BYTES, SECONDS_MAX, Read, Sent


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

    def _consumer(self) -> AIOKafkaConsumer:
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
        place = TopicPartition(topic, partition)
        async with self._consumer() as consumer:
            first = await consumer.beginning_offsets([place])
            end = await consumer.end_offsets([place])
        return first[place], end[place]

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        return asyncio.run(self._offset_at(topic, timestamp_ms, partition))

    async def _offset_at(self, topic: str, timestamp_ms: int, partition: int) -> int | None:
        place = TopicPartition(topic, partition)
        async with self._consumer() as consumer:
            found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
        return None if found is None else found.offset
