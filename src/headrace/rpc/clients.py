"""What the calls work with: one client of each kind for the whole process, made at start and closed at the end."""

import asyncio
from dataclasses import dataclass, field

from headrace.client.cluster import Cluster, TopicFacts
from headrace.client.coordinators import Coordinators
from headrace.client.front_door import open_clients
from headrace.client.publisher import Publisher
from headrace.client.topic_watch import TopicWatch
from headrace.model.settings import GatewaySettings
from headrace.rpc.room import Room

CLIENT_ID = "headrace-grpc"
# Each consume stream is a librdkafka consumer: a few threads, and up to a few megabytes read ahead.
CONSUME_STREAMS_MAX = 256


@dataclass(slots=True)
class Clients:
    bootstrap: str
    request_timeout_s: float
    cluster: Cluster
    coordinators: Coordinators
    publisher: Publisher
    watch: TopicWatch
    room: Room = field(default_factory=Room)
    consume_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONSUME_STREAMS_MAX))
    # Set when the process is told to stop: streams end then with a word, instead of being cut off.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def start(cls, settings: GatewaySettings, bootstrap: str, request_timeout_ms: int) -> "Clients":
        """Connects to nobody yet: this may be up before its broker is."""
        cluster, publisher = open_clients(settings, bootstrap, request_timeout_ms, CLIENT_ID)
        publisher.warm()
        return cls(
            bootstrap=bootstrap,
            request_timeout_s=request_timeout_ms / 1000,
            cluster=cluster,
            coordinators=Coordinators(cluster),
            publisher=publisher,
            watch=TopicWatch(cluster),
        )

    async def topic(self, name: str) -> TopicFacts:
        """Known, or asked for until a broker that is being restarted answers again."""
        known = self.cluster.known_topic(name)
        return known if known is not None else await self.cluster.patiently(lambda: self.cluster.topic(name))

    async def topic_to_produce(self, name: str) -> TopicFacts:
        """The same, once the producers know it as it is now."""
        facts = await self.topic(name)
        await self.publisher.learn(facts)
        return facts

    async def close(self) -> None:
        await self.watch.close()
        await self.publisher.close()
        self.cluster.close()
