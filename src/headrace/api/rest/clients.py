"""The Kafka clients of the REST server. One client of each kind serves the whole process; it is created at start and
closed at the end.
"""

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

# Takes the admin client, bootstrap address, group and timeout; returns the group's rebalances, oldest first. Injected,
# because the format of the coordinator's rebalance records is not part of the client package.
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
    # One permit per thread of the pool: a request that would have to wait for a thread gets 503 instead.
    threads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(THREADS_MAX))
    # Set when the process is stopping, so that waiting reads end with a response instead of a broken connection.
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
        """Creates the clients without connecting: the gateway may start before its broker."""
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
        """Returns the topic's cached metadata, or requests it and retries while a broker restarts. Updates the
        producers too.
        """
        facts = self.cluster.cached_topic(name)
        if facts is None:
            facts = await self.cluster.patiently(lambda: self.cluster.topic(name))
        await self.publisher.learn(facts)
        return facts

    async def check_partition(self, facts: TopicMetadata, partition: int) -> None:
        """Raises if the partition does not exist; librdkafka would retry for half a minute. Refreshes the metadata
        first, because the partition may have been added since.
        """
        if partition != ANY_PARTITION and partition >= len(facts.partitions):
            await self.cluster.patiently(lambda: self.cluster.partition(facts.name, partition))
            await self.publisher.learn(await self.cluster.topic(facts.name))

    def stop(self) -> None:
        """Called at the beginning of the shutdown: ends waiting reads."""
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
