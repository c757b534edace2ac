"""The gRPC server: services, health, reflection, limits for untrusted clients, and graceful shutdown.

Imported only by the gateway's processes, because importing grpcio takes longer than starting a broker.
"""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from headrace.api.grpc import admin, groups
from headrace.api.grpc.admin import get_topic_metadata
from headrace.api.grpc.call import RpcMetrics, Stream, TracedCalls, Unary, handlers
from headrace.api.grpc.clients import Clients
from headrace.api.grpc.consume import stream_consume
from headrace.api.grpc.fetch import fetch
from headrace.api.grpc.produce import produce, stream_produce
from headrace.config.settings import GatewaySettings, join_address
from headrace.rpc import headrace_pb2 as pb
from headrace.telemetry.gateway_metrics import UPSTREAM_WAITING
from headrace.telemetry.metrics import MetricFamily, by_label
from headrace.telemetry.tracing import Tracer

# A waiting call costs a few kilobytes. Further calls fail with RESOURCE_EXHAUSTED.
CALLS_MAX = 4096
STREAMS_PER_CONNECTION_MAX = 1024
METADATA_BYTES_MAX = 16 * 1024
# A client that disappears without closing its connection is detected after the sum of both. Its streams then leave
# their groups.
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 30_000, 10_000
# Minimum interval of client pings. gRPC's default of five minutes would disconnect clients with shorter keepalives.
CLIENT_PING_MS_MIN = 10_000
# Time for calls in flight to finish.
GRACEFUL_S = 5.0
PART = "grpc"  # the process's label value in the node's metrics

KAFKA_BROKER: dict[str, Unary | Stream] = {
    "Produce": produce,
    "Fetch": fetch,
    "GetTopicMetadata": get_topic_metadata,
    "CommitOffset": groups.commit_offset,
    "FetchOffset": groups.fetch_offset,
    "JoinGroup": groups.join_group,
    "SyncGroup": groups.sync_group,
    "LeaveGroup": groups.leave_group,
    "Heartbeat": groups.heartbeat,
    "StreamProduce": stream_produce,
    "StreamConsume": stream_consume,
}
ADMIN: dict[str, Unary | Stream] = {
    "CreateTopic": admin.create_topic,
    "DeleteTopic": admin.delete_topic,
    "ListTopics": admin.list_topics,
    "DescribeTopic": admin.describe_topic,
    "AddPartitions": admin.add_partitions,
    "ListOffsets": admin.list_offsets,
    "ListGroups": admin.list_groups,
    "DescribeGroup": admin.describe_group,
    "DeleteGroup": admin.delete_group,
    "ListGroupOffsets": admin.list_group_offsets,
    "AlterGroupOffsets": admin.alter_group_offsets,
}
_OPTIONS = [
    ("grpc.max_send_message_length", -1),  # a single large record may exceed any limit here; the client applies its own
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", CLIENT_PING_MS_MIN),
    # The supervisor holds the port as well, so that no other process binds it between restarts.
    ("grpc.so_reuseport", 1),
]


class RpcServer:
    """Binds with `start` and drains calls with `stop`. All calls run on the event loop."""

    def __init__(
        self, settings: GatewaySettings, bootstrap: str, request_timeout_ms: int, tracer: Tracer | None = None
    ) -> None:
        self._clients = Clients.start(settings, bootstrap, request_timeout_ms)
        self._figures = RpcMetrics()
        observer = self._figures if tracer is None else TracedCalls(self._figures, tracer)
        self._health = health.HealthServicer()
        # Bounds the memory of one request. gRPC's default of 4 MiB is less than a topic's max.message.bytes may allow.
        largest = ("grpc.max_receive_message_length", settings.body_bytes_max)
        self._server = grpc.aio.server(options=[*_OPTIONS, largest], maximum_concurrent_rpcs=CALLS_MAX)
        services = pb.DESCRIPTOR.services_by_name
        broker, administration = services["KafkaBroker"], services["Admin"]
        self._server.add_generic_rpc_handlers(
            (
                handlers(broker, self._clients, KAFKA_BROKER, observer),
                handlers(administration, self._clients, ADMIN, observer),
            )
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names = (broker.full_name, administration.full_name)
        named = (*self._names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(named, self._server)

    async def start(self, host: str, port: int) -> int:
        """Binds and returns the port, chosen by the system for port 0. Raises OSError if it is not available."""
        try:
            bound = self._server.add_insecure_port(join_address(host, port))
        except RuntimeError as error:
            raise OSError(f"{join_address(host, port)} cannot be used") from error
        await self._server.start()
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return bound

    async def families(self) -> list[MetricFamily]:
        """Returns the metrics for a scrape."""
        waiting = by_label(UPSTREAM_WAITING, [(PART, self._clients.publisher.under_way)])
        return [*self._figures.families(), waiting]

    async def stop(self) -> None:
        self._clients.stopping.set()
        await self._health.enter_graceful_shutdown()
        await self._server.stop(GRACEFUL_S)
        await self._clients.close()
