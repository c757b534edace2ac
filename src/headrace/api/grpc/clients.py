"""The Kafka clients of the gRPC server, and the budget of records in flight. One client of each kind serves the whole
process; it is created at start and closed at the end.
"""

import asyncio
from dataclasses import dataclass, field

from headrace.client.aio.client import Cluster, CoordinatorCache, TopicMetadata
from headrace.client.aio.producer import AsyncProducer
from headrace.client.aio.topic_monitor import TopicDeletionMonitor
from headrace.client.kafka_clients import open_clients
from headrace.config.settings import GatewaySettings


class SendBudget:
    """Bounds the records and bytes that wait for the broker, over all calls. Calls beyond the limits wait in FIFO
    order.

    Both limits are well below librdkafka's queue limits (`client/aio/producer.py`). If that queue overflowed in
    the middle of a request, later records could overtake earlier ones.
    """

    RECORDS_MAX = 100_000
    BYTES_MAX = 32 * 1024 * 1024

    def __init__(self) -> None:
        self._records = self._bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, records: int, size: int) -> None:
        async with self._turn:
            while self._records and (self._records + records > self.RECORDS_MAX or self._bytes + size > self.BYTES_MAX):
                self._freed.clear()
                await self._freed.wait()
            self._records += records
            self._bytes += size

    def give_back(self, records: int, size: int) -> None:
        self._records -= records
        self._bytes -= size
        self._freed.set()


CLIENT_ID = "headrace-grpc"
# Each consume stream is a librdkafka consumer: a few threads, and up to a few megabytes of prefetched records.
CONSUME_STREAMS_MAX = 256


@dataclass(slots=True)
class Clients:
    bootstrap: str
    request_timeout_s: float
    cluster: Cluster
    coordinators: CoordinatorCache
    publisher: AsyncProducer
    watch: TopicDeletionMonitor
    room: SendBudget = field(default_factory=SendBudget)
    consume_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONSUME_STREAMS_MAX))
    # Set when the process is stopping, so that streams end with a status instead of a broken connection.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def start(cls, settings: GatewaySettings, bootstrap: str, request_timeout_ms: int) -> "Clients":
        """Creates the clients without connecting: this process may start before its broker."""
        cluster, publisher = open_clients(settings, bootstrap, request_timeout_ms, CLIENT_ID)
        publisher.warm()
        return cls(
            bootstrap=bootstrap,
            request_timeout_s=request_timeout_ms / 1000,
            cluster=cluster,
            coordinators=CoordinatorCache(cluster),
            publisher=publisher,
            watch=TopicDeletionMonitor(cluster),
        )

    async def topic(self, name: str) -> TopicMetadata:
        """Returns the cached metadata of the topic, or requests it and retries while a broker restarts."""
        known = self.cluster.cached_topic(name)
        return known if known is not None else await self.cluster.patiently(lambda: self.cluster.topic(name))

    async def topic_to_produce(self, name: str) -> TopicMetadata:
        """Returns the metadata of the topic after updating the producers with it."""
        facts = await self.topic(name)
        await self.publisher.learn(facts)
        return facts

    async def close(self) -> None:
        await self.watch.close()
        await self.publisher.close()
        self.cluster.close()
