"""The blocking Kafka client: metadata, leader routing, coordinator lookup, retries and topic creation.

Single-threaded: a Spark task or its driver sends one request after another. Every request has a version that Kafka
3.0 to 4.3 and headrace all serve, so no version is negotiated. Selects the broker of each request and the errors that
are retried; the requests themselves are in the other modules of this package.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from headrace.client.core.config import SecurityConfig
from headrace.client.core.errors import KafkaApiError
from headrace.client.core.scram import ScramError
from headrace.client.librdkafka import BrokerUnreachable, bootstrap_addresses
from headrace.client.sync.transport import AuthenticationError, Connection
from headrace.model.errors import ErrorCode
from headrace.model.ids import ZERO_UUID, TopicPartition

GROUP, TRANSACTION = 0, 1  # coordinator types

_PAUSE_FIRST_S, _PAUSE_LONGEST_S = 0.05, 1.0

Address = tuple[str, int]
T = TypeVar("T")
Response = TypeVar("Response")


def check(code: int, what: str) -> None:
    if code:
        name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error {code}"
        raise KafkaApiError(int(code), f"{what}: {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Everything that a task needs to reach the cluster. Picklable."""

    bootstrap: str
    security: SecurityConfig = field(default_factory=SecurityConfig)
    client_id: str = "headrace-spark"
    request_timeout_s: float = 30.0  # as Kafka's request.timeout.ms
    patience_s: float = 60.0  # how long requests are retried while the cluster does not respond
    rack: str = ""  # rack of the client: brokers may direct its fetches to a replica there


class RetryPolicy:
    """Retries consecutive failures with increasing pauses, up to a time limit."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._deadline: float | None = None
        self._pause_s = _PAUSE_FIRST_S

    def wait_after(self, error: OSError | KafkaApiError, what: str) -> None:
        """Pauses before a retry. Raises non-retriable errors at once, and BrokerUnreachable after the time limit."""
        if isinstance(error, (AuthenticationError, ScramError)):
            raise error
        if isinstance(error, KafkaApiError) and not error.passes:
            raise error
        now = time.monotonic()
        self._deadline = self._deadline or now + self._patience_s
        if now + self._pause_s > self._deadline:
            raise BrokerUnreachable(f"{what}: gave up after {self._patience_s:.0f} s ({error})") from error
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _PAUSE_LONGEST_S)

    def renew(self) -> None:
        """Resets time limit and pause after a success."""
        self._deadline, self._pause_s = None, _PAUSE_FIRST_S


class TopicView(NamedTuple):
    """A topic as in a Metadata response. Partitions without a leader are included with leader -1."""

    name: str
    topic_id: UUID
    leaders: Mapping[int, int]
    is_internal: bool = False


class Cluster:
    def __init__(self, settings: ClientConfig) -> None:
        self.settings = settings
        self._connections: dict[Address, Connection] = {}
        self._nodes: dict[int, Address] = {}
        self._topics: dict[str, TopicView] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    # Retries

    def patiently(self, what: str, attempt: Callable[[], T]) -> T:
        """Returns the result of `attempt`; retries retriable errors and lost connections until the time limit."""
        patience = RetryPolicy(self.settings.patience_s)
        while True:
            try:
                return attempt()
            except (OSError, KafkaApiError) as error:
                patience.wait_after(error, f"{what} at {self.settings.bootstrap}")
                self.forget()

    def forget(self) -> None:
        """Drops what a failure may have made stale: connections, leaders, coordinators."""
        self.close()
        self._nodes.clear()
        self._topics.clear()
        self._coordinators.clear()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Connections

    def connection(self, address: Address) -> Connection:
        known = self._connections.get(address)
        if known is None:
            settings = self.settings
            known = self._connections[address] = Connection(
                *address, settings.request_timeout_s, security=settings.security, client_id=settings.client_id
            )
        return known

    def any_connection(self) -> Connection:
        """Returns an open connection, or one to the first bootstrap address that responds."""
        for connection in self._connections.values():
            return connection
        failures = []
        for address in bootstrap_addresses(self.settings.bootstrap):
            try:
                return self.connection(address)
            except BrokerUnreachable as error:
                failures.append(str(error))
        raise BrokerUnreachable("; ".join(failures))

    def addresses(self) -> list[Address]:
        """Returns the addresses of all brokers."""
        if not self._nodes:
            self.topics([])
        return list(self._nodes.values())

    def broker_connection(self, node_id: int) -> Connection:
        if node_id not in self._nodes:
            raise KafkaApiError(ErrorCode.REPLICA_NOT_AVAILABLE, f"unknown address of broker {node_id}")
        return self.connection(self._nodes[node_id])

    def leader_connection(self, partition: TopicPartition) -> Connection:
        return self.connection(self.leader_address(partition))

    def leader_address(self, partition: TopicPartition) -> Address:
        topic = self.topic(partition.topic)
        if topic is not None and partition.partition not in topic.leaders:
            # may have been added since the metadata was cached
            topic = self.topics([partition.topic]).get(partition.topic)
        leader = topic.leaders.get(partition.partition) if topic else None
        if leader is None:
            raise KafkaApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")
        if leader not in self._nodes:
            self._topics.clear()
            raise KafkaApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader for {partition}")
        return self._nodes[leader]

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[Address, list[TopicPartition]]:
        grouped: dict[Address, list[TopicPartition]] = {}
        for partition in partitions:
            grouped.setdefault(self.leader_address(partition), []).append(partition)
        return grouped

    # Requests

    def topic(self, name: str) -> TopicView | None:
        """Returns cached metadata, or requests it; None if the topic does not exist."""
        if name not in self._topics:
            self.topics([name])
        return self._topics.get(name)

    def topics(self, names: Iterable[str] | None, *, create: bool = False) -> dict[str, TopicView]:
        """Requests metadata of these topics, or of all (None); returns those that exist.

        `create` allows the cluster to auto-create missing topics.
        """
        from kio.schema.metadata.v10.request import MetadataRequest, MetadataRequestTopic
        from kio.schema.metadata.v10.response import MetadataResponse
        from kio.schema.types import TopicName

        asked = None if names is None else tuple(MetadataRequestTopic(topic_id=None, name=TopicName(n)) for n in names)
        request = MetadataRequest(
            topics=asked,
            allow_auto_topic_creation=create,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        answer = self.any_connection().call(request, MetadataResponse)
        self._nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        found: dict[str, TopicView] = {}
        for topic in answer.topics:
            if int(topic.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._topics.pop(topic.name, None)
                continue
            check(topic.error_code, f"topic {topic.name}")
            leaders = {int(row.partition_index): int(row.leader_id) for row in topic.partitions}
            found[topic.name] = TopicView(topic.name, topic.topic_id or ZERO_UUID, leaders, topic.is_internal)
        self._topics.update(found)
        return found

    def coordinator_connection(self, kind: int, key: str) -> Connection:
        from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
        from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse
        from kio.static.primitive import i8

        address = self._coordinators.get((kind, key))
        if address is None:
            request = FindCoordinatorRequest(key=key, key_type=i8(kind))
            answer = self.any_connection().call(request, FindCoordinatorResponse)
            check(answer.error_code, f"the coordinator of {key}")
            address = self._coordinators[kind, key] = (answer.host, answer.port)
        return self.connection(address)

    def ask_coordinator(self, kind: int, key: str, request: Any, response_type: type[Response]) -> Response:
        return self.coordinator_connection(kind, key).call(request, response_type)


_DEFAULT_REPLICATION = -1  # the cluster's default
_CREATION = timedelta(seconds=30)


def create_topic_if_missing(cluster: Cluster, name: str, configs: Mapping[str, str] | None = None) -> None:
    """Creates the topic with one partition and these configs unless it exists."""
    from kio.schema.create_topics.v5.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
    from kio.schema.create_topics.v5.response import CreateTopicsResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import i16, i32, i32Timedelta

    topic = CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(1),
        replication_factor=i16(_DEFAULT_REPLICATION),
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()),
    )
    request = CreateTopicsRequest(topics=(topic,), timeout=i32Timedelta.parse(_CREATION))

    def attempt() -> None:
        if cluster.topic(name) is not None:
            return
        (row,) = cluster.any_connection().call(request, CreateTopicsResponse).topics
        if int(row.error_code) != ErrorCode.TOPIC_ALREADY_EXISTS:
            check(row.error_code, f"creating the topic {name}")

    cluster.patiently(f"finding the topic {name}", attempt)
