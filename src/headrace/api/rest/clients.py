"""What the routes work with: one client of each kind for the whole process, made at start and closed at the end."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from fastapi import Request

from headrace.api.pipeline_reports import PipelineReports
from headrace.api.rest.consumers import ConsumerRegistry
from headrace.api.rest.http import Locks
from headrace.api.rest.metrics import HttpMetrics, NodeTelemetry
from headrace.client.aio.client import Cluster, CoordinatorCache, TopicMetadata
from headrace.client.aio.producer import ANY_PARTITION, AsyncProducer
from headrace.client.aio.request_batcher import RequestBatcher
from headrace.client.aio.topic_monitor import TopicDeletionMonitor
from headrace.client.kafka_clients import open_clients
from headrace.client.librdkafka import make_admin
from headrace.config.settings import GatewaySettings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

CLIENT_ID = "headrace-gateway"
THREADS_MAX = 64

# Admin client, bootstrap, group and time limit in; the group's rebalances out, the oldest first. Handed in, because the
# format in which a coordinator writes them down is not a client's business.
RebalanceReader = Callable[["AdminClient", str, str, float], list[dict[str, Any]]]


@dataclass(slots=True)
class ApiClients:
    settings: GatewaySettings
    bootstrap: str
    request_timeout_s: float
    cluster: Cluster
    coordinators: CoordinatorCache
    publisher: AsyncProducer
    singles: RequestBatcher
    admin: "AdminClient"
    read_rebalances: "RebalanceReader"
    consumers: ConsumerRegistry
    watch: TopicDeletionMonitor
    pipelines: PipelineReports
    telemetry: NodeTelemetry
    figures: HttpMetrics
    locks: Locks = field(default_factory=Locks)
    # As many as there are threads: a request that would have to wait for one is answered with 503 instead.
    threads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(THREADS_MAX))
    # Set when the process is told to stop: whoever waits for records ends then, instead of being cut off.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def start(
        cls,
        settings: GatewaySettings,
        bootstrap: str,
        request_timeout_ms: int,
        read_rebalances: "RebalanceReader",
        figures: HttpMetrics,
        neighbours: Mapping[str, str],
    ) -> "ApiClients":
        """Connects to nobody yet: a gateway may be up before its broker is."""
        telemetry = NodeTelemetry(figures, neighbours)
        telemetry.lag.start()
        cluster, publisher = open_clients(settings, bootstrap, request_timeout_ms, CLIENT_ID)
        watch = TopicDeletionMonitor(cluster)
        publisher.warm()
        return cls(
            settings=settings,
            bootstrap=bootstrap,
            request_timeout_s=request_timeout_ms / 1000,
            cluster=cluster,
            coordinators=CoordinatorCache(cluster),
            publisher=publisher,
            singles=RequestBatcher(publisher, settings.linger_ms),
            admin=make_admin(bootstrap, {"client.id": CLIENT_ID}),
            read_rebalances=read_rebalances,
            consumers=ConsumerRegistry(bootstrap, watch),
            watch=watch,
            pipelines=PipelineReports(cluster),
            telemetry=telemetry,
            figures=figures,
        )

    async def topic_to_produce(self, name: str) -> TopicMetadata:
        """Known, or asked for until a broker that is being restarted answers again; the producers know it as well."""
        facts = self.cluster.cached_topic(name)
        if facts is None:
            facts = await self.cluster.patiently(lambda: self.cluster.topic(name))
        await self.publisher.learn(facts)
        return facts

    async def check_partition(self, facts: TopicMetadata, partition: int) -> None:
        """librdkafka would wait half a minute for a partition that does not exist. One may have been added since."""
        if partition != ANY_PARTITION and partition >= len(facts.partitions):
            await self.cluster.patiently(lambda: self.cluster.partition(facts.name, partition))
            await self.publisher.learn(await self.cluster.topic(facts.name))

    def stop(self) -> None:
        """Told before the end: nobody is to wait any longer."""
        self.stopping.set()
        self.consumers.wake_all()

    async def close(self) -> None:
        self.telemetry.lag.stop()
        await self.consumers.close()
        await self.watch.close()
        await self.publisher.close()
        self.cluster.close()


def services(request: Request) -> ApiClients:
    return cast(ApiClients, request.app.state.services)
