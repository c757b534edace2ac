"""The asyncio Kafka client: metadata cache, leader routing, coordinator lookup and retries.

Refreshes metadata when it expires or proves wrong, and retries after leader changes and broker restarts. Never
creates topics by requesting their metadata. The group requests are in `groups.py`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from headrace.client.aio.transport import Address, Pool
from headrace.client.core.errors import RETRIABLE_CODES, KafkaApiError, UnknownOutcomeError
from headrace.client.librdkafka import BrokerUnreachable, ResponseLost, bootstrap_addresses
from headrace.model.errors import ErrorCode

# Cache time of topic metadata: a topic that another client deletes or extends is noticed after this time.
TOPIC_TRUSTED_S = 5.0
# Cache time of an absent topic: bounds the metadata requests per second that lookups of absent topics cause.
ABSENCE_TRUSTED_S = 0.1
# Timeout for one broker of a request that other brokers can serve as well.
ANSWER_S_MAX = 5.0
# The retry backoff doubles from its setting up to this.
BACKOFF_S_MAX = 1.0

Result = TypeVar("Result")
Response = TypeVar("Response")


class Broker(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    partition: int
    leader: int  # -1: no leader
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class TopicMetadata(NamedTuple):
    name: str
    id: UUID | None
    internal: bool
    partitions: tuple[PartitionMetadata, ...]


class ClusterMetadata(NamedTuple):
    id: str | None
    controller: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicMetadata]


class Cluster:
    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str,
        request_timeout_s: float,
        retry_backoff_s: float = 0.1,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bootstrap, self._client_id = bootstrap, client_id
        self.request_timeout_s, self._retry_backoff_s = request_timeout_s, retry_backoff_s
        self._now = now
        self._pool = Pool()
        self._addresses = bootstrap_addresses(bootstrap)
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, tuple[TopicMetadata | None, float]] = {}
        self._asked: dict[str, asyncio.Task[TopicMetadata | None]] = {}
        self._silent: set[Address] = set()  # brokers that did not respond to their last request

    def close(self) -> None:
        for task in self._asked.values():
            task.cancel()
        self._pool.close()

    # Metadata

    async def everything(self) -> ClusterMetadata:
        """Requests the metadata of all brokers and topics."""
        facts = await self.described(None)
        moment = self._now()
        self._topics = {name: (topic, moment) for name, topic in facts.topics.items()}
        return facts

    def cached_topic(self, name: str) -> TopicMetadata | None:
        """Returns cached metadata if it has not expired; for callers that cannot afford a task."""
        topic, learned = self._topics.get(name, (None, 0.0))
        return topic if topic is not None and self._now() - learned < TOPIC_TRUSTED_S else None

    async def topic(self, name: str) -> TopicMetadata:
        """Returns the topic's metadata; raises KafkaApiError with UNKNOWN_TOPIC_OR_PARTITION if it does not exist."""
        topic, learned = self._topics.get(name, (None, -TOPIC_TRUSTED_S))
        trusted_s = ABSENCE_TRUSTED_S if topic is None else TOPIC_TRUSTED_S
        if self._now() - learned >= trusted_s:
            topic = await self.refreshed(name)
        if topic is None:
            raise KafkaApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return topic

    async def partition(self, topic: str, partition: int) -> PartitionMetadata:
        facts = await self.topic(topic)
        if partition >= len(facts.partitions):  # partitions may have been added
            facts = await self.refreshed(topic) or facts
        for one in facts.partitions:
            if one.partition == partition:
                return one
        count = len(facts.partitions)
        raise KafkaApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has partitions 0 to {count - 1}, and no {partition}"
        )

    async def refreshed(self, name: str) -> TopicMetadata | None:
        """Requests the topic's metadata; concurrent requests for the same topic share the response."""
        task = self._asked.get(name)
        if task is None:
            task = self._asked[name] = asyncio.create_task(self._ask_for(name))
            task.add_done_callback(lambda _: self._asked.pop(name, None))
        return await asyncio.shield(task)

    def forget(self, name: str) -> None:
        self._topics.pop(name, None)

    async def _ask_for(self, name: str) -> TopicMetadata | None:
        topic = (await self.described([name])).topics.get(name)
        self._topics[name] = (topic, self._now())
        if len(self._topics) > TOPICS_KNOWN_MAX:
            self._topics = {name: (topic, self._now())}
        return topic

    async def brokers(self) -> Mapping[int, Broker]:
        if not self._brokers:
            await self.refresh_brokers()
        return self._brokers

    async def refresh_brokers(self) -> None:
        await self.described([])

    async def controller(self) -> int:
        """Requests the id of the active controller. Not cached: it changes, and few requests need it."""
        return (await self.described([])).controller

    async def described(self, names: Sequence[str] | None) -> ClusterMetadata:
        """Requests the brokers and those of the named topics that exist; `None` requests every topic."""
        from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
        from kio.schema.metadata.v12.response import MetadataResponse
        from kio.schema.types import TopicName

        asked = None
        if names is not None:
            asked = tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names)
        request = MetadataRequest(
            topics=asked,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        facts = _facts(await self.call_any_broker(request, MetadataResponse))
        self._brokers = dict(facts.brokers)
        return facts

    # Routing

    async def call_broker(
        self, broker_id: int, request: Any, response_type: type[Response], wait_s: float = 0.0
    ) -> Response:
        broker = (await self.brokers()).get(broker_id)
        if broker is None:
            raise KafkaApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {broker_id}")
        return await self._call((broker.host, broker.port), request, response_type, self.request_timeout_s + wait_s)

    async def call_leader(
        self, topic: str, partition: int, request: Any, response_type: type[Response], wait_s: float = 0.0
    ) -> Response:
        facts = await self.partition(topic, partition)
        broker = (await self.brokers()).get(facts.leader)
        if broker is None:
            self.forget(topic)
            raise KafkaApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader for {topic}-{partition} at the moment")
        try:
            return await self._call((broker.host, broker.port), request, response_type, self.request_timeout_s + wait_s)
        except BrokerUnreachable:
            self.forget(topic)  # the leader may have changed
            raise

    async def patiently(
        self, attempt: Callable[[], Awaitable[Result]], passing: Collection[ErrorCode] = RETRIABLE_CODES
    ) -> Result:
        """Retries retriable errors until the request timeout: broker restarts, elections, moved leaders.

        A lost response counts as NETWORK_EXCEPTION. If the `passing` codes do not include it, the request is not sent
        again, because its first execution would make the second one fail or take effect twice: raises
        UnknownOutcomeError.
        """
        deadline = self._now() + self.request_timeout_s
        pause_s = self._retry_backoff_s
        while True:
            try:
                return await attempt()
            except ResponseLost as error:
                if ErrorCode.NETWORK_EXCEPTION not in passing:
                    raise UnknownOutcomeError(f"{error}: the request may have been carried out, or not") from error
                if self._now() + pause_s > deadline:
                    raise
            except (BrokerUnreachable, KafkaApiError) as error:
                retriable = not isinstance(error, KafkaApiError) or error.code in passing
                if not retriable or self._now() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_S_MAX)

    async def call_any_broker(self, request: Any, response_type: type[Response]) -> Response:
        """Sends a request that any broker can serve to one after another until one responds.

        Raises BrokerUnreachable if none does.
        """
        known = [(one.host, one.port) for one in self._brokers.values()]
        addresses = sorted(dict.fromkeys([*known, *self._addresses]), key=self._silent.__contains__)
        failures = []
        for number, address in enumerate(addresses, 1):
            timeout_s = self.request_timeout_s
            if number < len(addresses):
                timeout_s = min(timeout_s, ANSWER_S_MAX)
            try:
                response = await self._call(address, request, response_type, timeout_s)
            except BrokerUnreachable as error:
                self._silent.add(address)
                failures.append(str(error))
            else:
                self._silent.discard(address)
                return response
        self._silent &= set(addresses)
        raise BrokerUnreachable("; ".join(failures))

    async def _call(self, address: Address, request: Any, response_type: type[Response], timeout_s: float) -> Response:
        async with self._pool.borrowed(address) as connection:
            return await connection.call(self._client_id, request, response_type, timeout_s)


# Absent topics are cached, too; bounds the memory that untrusted clients can fill with names.
TOPICS_KNOWN_MAX = 20_000


def _facts(answer: Any) -> ClusterMetadata:
    brokers = {one.node_id: Broker(one.node_id, one.host, one.port, one.rack) for one in answer.brokers}
    topics = {one.name: _topic(one) for one in answer.topics if not one.error_code}
    return ClusterMetadata(answer.cluster_id, answer.controller_id, brokers, topics)


def _topic(one: Any) -> TopicMetadata:
    partitions = (
        PartitionMetadata(
            part.partition_index,
            part.leader_id,
            part.leader_epoch,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            tuple(part.offline_replicas),
        )
        for part in one.partitions
    )
    return TopicMetadata(one.name, one.topic_id, one.is_internal, tuple(sorted(partitions)))


# Group names come from untrusted clients. The bound is far above the number of active groups of a cluster.
GROUPS_KNOWN_MAX = 10_000
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# Errors that are retried while the caller waits. REBALANCE_IN_PROGRESS is not among them: the members must act on it.
_PASSING = _MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.BROKER_NOT_AVAILABLE,
}
_PASSING_REPEATABLE = _PASSING | {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION}


class CoordinatorCache:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[str, int] = {}

    async def ask(
        self, group_id: str, attempt: Callable[[int], Awaitable[Result]], *, repeatable: bool = True
    ) -> Result:
        """Calls `attempt` with the coordinator's broker id, and again with the new one after the coordinator has
        moved.

        Unless it is `repeatable`, it is not retried after a lost response: raises UnknownOutcomeError.
        """

        async def once() -> Result:
            broker_id = self._known.get(group_id)
            if broker_id is None:
                broker_id = await self._find(group_id)
            try:
                return await attempt(broker_id)
            except BrokerUnreachable:
                self._known.pop(group_id, None)
                raise
            except KafkaApiError as refused:
                if refused.code in _MOVED:
                    self._known.pop(group_id, None)
                raise

        return await self.cluster.patiently(once, _PASSING_REPEATABLE if repeatable else _PASSING)

    async def _find(self, group_id: str) -> int:
        from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
        from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse
        from kio.static.primitive import i8

        request = FindCoordinatorRequest(key=group_id, key_type=i8(0))
        answer = await self.cluster.call_any_broker(request, FindCoordinatorResponse)
        if answer.error_code:
            raise KafkaApiError(int(answer.error_code), answer.error_message or answer.error_code.name)
        if len(self._known) >= GROUPS_KNOWN_MAX:
            self._known.clear()
        self._known[group_id] = answer.node_id
        if answer.node_id not in await self.cluster.brokers():
            await self.cluster.refresh_brokers()
        return answer.node_id
