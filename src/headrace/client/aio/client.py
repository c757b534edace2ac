"""The asyncio Kafka client: metadata cache, leader routing, coordinator lookup, retries.

What a client knows of a cluster: brokers, topics, leaders; and how to reach whoever leads a partition.

Decides when that knowledge is asked for again, and what is tried again after a leader has moved or a broker was
restarted. Never creates a topic by asking for it.

Decides when a coordinator is looked for again. What is asked is the business of `groups.py`.
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

# A topic that somebody deletes by another way is noticed after this long, one that grows likewise.
TOPIC_TRUSTED_S = 5.0
# Somebody who keeps asking for a topic that is not there costs the broker this many questions a second at most.
ABSENCE_TRUSTED_S = 0.1
# A question that other brokers could answer waits for one of them this long.
ANSWER_S_MAX = 5.0
# Waiting between tries doubles from the setting up to this.
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
    leader: int  # -1: nobody
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
        self._silent: set[Address] = set()  # brokers that did not answer when they were asked last

    def close(self) -> None:
        for task in self._asked.values():
            task.cancel()
        self._pool.close()

    # What there is

    async def everything(self) -> ClusterMetadata:
        """Asked anew: brokers, and all topics."""
        facts = await self.described(None)
        moment = self._now()
        self._topics = {name: (topic, moment) for name, topic in facts.topics.items()}
        return facts

    def cached_topic(self, name: str) -> TopicMetadata | None:
        """Without waiting: what is known and fresh enough, for paths that cannot afford a task."""
        topic, learned = self._topics.get(name, (None, 0.0))
        return topic if topic is not None and self._now() - learned < TOPIC_TRUSTED_S else None

    async def topic(self, name: str) -> TopicMetadata:
        """The topic, or a Refused with UNKNOWN_TOPIC_OR_PARTITION."""
        topic, learned = self._topics.get(name, (None, -TOPIC_TRUSTED_S))
        trusted_s = ABSENCE_TRUSTED_S if topic is None else TOPIC_TRUSTED_S
        if self._now() - learned >= trusted_s:
            topic = await self.refreshed(name)
        if topic is None:
            raise KafkaApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return topic

    async def partition(self, topic: str, partition: int) -> PartitionMetadata:
        facts = await self.topic(topic)
        if partition >= len(facts.partitions):  # perhaps it has grown since
            facts = await self.refreshed(topic) or facts
        for one in facts.partitions:
            if one.partition == partition:
                return one
        count = len(facts.partitions)
        raise KafkaApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has partitions 0 to {count - 1}, and no {partition}"
        )

    async def refreshed(self, name: str) -> TopicMetadata | None:
        """Asked anew; those who ask for the same topic at the same moment share the answer."""
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
        """Asked anew: it moves, and whoever needs it has something rare to ask."""
        return (await self.described([])).controller

    async def described(self, names: Sequence[str] | None) -> ClusterMetadata:
        """Asked anew: brokers, and those of the named topics that exist; `None` is every topic."""
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

    # Whom to ask

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
            self.forget(topic)  # its leader may be another one by now
            raise

    async def patiently(
        self, attempt: Callable[[], Awaitable[Result]], passing: Collection[ErrorCode] = RETRIABLE_CODES
    ) -> Result:
        """Try again, within the request's time, whatever may pass: a restart, an election, a moved leader.

        A lost response is NETWORK_EXCEPTION. Where that is not among the `passing` codes the request is not sent again,
        because its first execution would make the second one fail or count twice: Unanswered says so.
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
        """For questions, which may be put to several brokers: BrokerUnreachable if none of them answers."""
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


# Names that were asked for and do not exist are remembered too: strangers must not fill the memory with them.
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


# A group named by a stranger is remembered; more of them than a cluster has busy groups are not worth the memory.
GROUPS_KNOWN_MAX = 10_000
_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# What passes while the caller waits. A rebalance does not: it is the members who have to do something about it.
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
        """`attempt` with the coordinator's broker id, again with another where it has moved.

        Unless it is `repeatable` it is not tried again after a lost response: Unanswered.
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
