"""What a client knows of a cluster: brokers, topics, leaders; and how to reach whoever leads a partition.

Decides when that knowledge is asked for again, and what is tried again after a leader has moved or a broker was
restarted. Never creates a topic by asking for it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from headrace.client.factory import BrokerUnreachable, ResponseLost, bootstrap_addresses
from headrace.client.pool import Address, Pool
from headrace.client.refusals import PASSING, Refused, Unanswered
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


class PartitionFacts(NamedTuple):
    partition: int
    leader: int  # -1: nobody
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class TopicFacts(NamedTuple):
    name: str
    id: UUID | None
    internal: bool
    partitions: tuple[PartitionFacts, ...]


class ClusterFacts(NamedTuple):
    id: str | None
    controller: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicFacts]


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
        self._topics: dict[str, tuple[TopicFacts | None, float]] = {}
        self._asked: dict[str, asyncio.Task[TopicFacts | None]] = {}
        self._silent: set[Address] = set()  # brokers that did not answer when they were asked last

    def close(self) -> None:
        for task in self._asked.values():
            task.cancel()
        self._pool.close()

    # What there is

    async def everything(self) -> ClusterFacts:
        """Asked anew: brokers, and all topics."""
        facts = await self.described(None)
        moment = self._now()
        self._topics = {name: (topic, moment) for name, topic in facts.topics.items()}
        return facts

    def known_topic(self, name: str) -> TopicFacts | None:
        """Without waiting: what is known and fresh enough, for paths that cannot afford a task."""
        topic, learned = self._topics.get(name, (None, 0.0))
        return topic if topic is not None and self._now() - learned < TOPIC_TRUSTED_S else None

    async def topic(self, name: str) -> TopicFacts:
        """The topic, or a Refused with UNKNOWN_TOPIC_OR_PARTITION."""
        topic, learned = self._topics.get(name, (None, -TOPIC_TRUSTED_S))
        trusted_s = ABSENCE_TRUSTED_S if topic is None else TOPIC_TRUSTED_S
        if self._now() - learned >= trusted_s:
            topic = await self.refreshed(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return topic

    async def partition(self, topic: str, partition: int) -> PartitionFacts:
        facts = await self.topic(topic)
        if partition >= len(facts.partitions):  # perhaps it has grown since
            facts = await self.refreshed(topic) or facts
        for one in facts.partitions:
            if one.partition == partition:
                return one
        count = len(facts.partitions)
        raise Refused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has partitions 0 to {count - 1}, and no {partition}"
        )

    async def refreshed(self, name: str) -> TopicFacts | None:
        """Asked anew; those who ask for the same topic at the same moment share the answer."""
        task = self._asked.get(name)
        if task is None:
            task = self._asked[name] = asyncio.create_task(self._ask_for(name))
            task.add_done_callback(lambda _: self._asked.pop(name, None))
        return await asyncio.shield(task)

    def forget(self, name: str) -> None:
        self._topics.pop(name, None)

    async def _ask_for(self, name: str) -> TopicFacts | None:
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

    async def described(self, names: Sequence[str] | None) -> ClusterFacts:
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
        facts = _facts(await self.call_anyone(request, MetadataResponse))
        self._brokers = dict(facts.brokers)
        return facts

    # Whom to ask

    async def call_broker(
        self, broker_id: int, request: Any, response_type: type[Response], wait_s: float = 0.0
    ) -> Response:
        broker = (await self.brokers()).get(broker_id)
        if broker is None:
            raise Refused(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {broker_id}")
        return await self._call((broker.host, broker.port), request, response_type, self.request_timeout_s + wait_s)

    async def call_leader(
        self, topic: str, partition: int, request: Any, response_type: type[Response], wait_s: float = 0.0
    ) -> Response:
        facts = await self.partition(topic, partition)
        broker = (await self.brokers()).get(facts.leader)
        if broker is None:
            self.forget(topic)
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"no leader for {topic}-{partition} at the moment")
        try:
            return await self._call((broker.host, broker.port), request, response_type, self.request_timeout_s + wait_s)
        except BrokerUnreachable:
            self.forget(topic)  # its leader may be another one by now
            raise

    async def patiently(
        self, attempt: Callable[[], Awaitable[Result]], passing: Collection[ErrorCode] = PASSING
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
                    raise Unanswered(f"{error}: the request may have been carried out, or not") from error
                if self._now() + pause_s > deadline:
                    raise
            except (BrokerUnreachable, Refused) as error:
                retriable = not isinstance(error, Refused) or error.code in passing
                if not retriable or self._now() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, BACKOFF_S_MAX)

    async def call_anyone(self, request: Any, response_type: type[Response]) -> Response:
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


def _facts(answer: Any) -> ClusterFacts:
    brokers = {one.node_id: Broker(one.node_id, one.host, one.port, one.rack) for one in answer.brokers}
    topics = {one.name: _topic(one) for one in answer.topics if not one.error_code}
    return ClusterFacts(answer.cluster_id, answer.controller_id, brokers, topics)


def _topic(one: Any) -> TopicFacts:
    partitions = (
        PartitionFacts(
            part.partition_index,
            part.leader_id,
            part.leader_epoch,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            tuple(part.offline_replicas),
        )
        for part in one.partitions
    )
    return TopicFacts(one.name, one.topic_id, one.is_internal, tuple(sorted(partitions)))
