"""A topic that is deleted and created again under its name, and whose records are deleted, whatever else happens.

Records are sent by topic id, so that it is certain to which topic an acknowledged one belongs.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from headrace.broker.replica.partition import Partition
from headrace.client.aio.broker_connection import ConnectionLost
from headrace.core.controller.topic_control import NewTopic
from headrace.records.builder import NewRecord, build_batch
from tests.simulation.cluster_calls import SimCluster
from tests.simulation.cluster_clients import Client, Until, produce_frame, produce_row
from tests.simulation.cluster_node import SimNode
from tests.simulation.cluster_promises import DeletedAgain, HistoryChanged, Ledger, TopicsMixed, values_of

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld

NAME = "u"
WITH_TOPIC_IDS = 13  # the version of Produce
ADMIN_S = 4.0
CONFIGS = {"min.insync.replicas": "1", "flush.policy": "fsync", "internal.segment.bytes": "300"}


class TopicClient(Client):
    def __init__(self, world: "ClusterWorld", number: int) -> None:
        super().__init__(world, number)
        self.topic_id: UUID | None = None
        self.ledgers: dict[UUID, Ledger] = defaultdict(Ledger)
        self.deleted_to: dict[UUID, int] = defaultdict(int)
        self.asked_to: dict[UUID, int] = defaultdict(int)
        self.sent: dict[str, UUID] = {}

    async def run(self, until: Until) -> None:
        while not until():
            await self.pause(0.3)
            if not self.world.is_calm or self.topic_id is None:
                await self._create_again()
            for _ in range(self.random.randrange(4, 12)):
                if until():
                    return
                await self.pause(0.25)
                await (self._delete() if self.random.random() < 0.3 else self._send())

    async def _create_again(self) -> None:
        """The topic of that name is a new one, or the one that was there: whether a change happened may be unknown."""
        nodes = [node for node in self.world.nodes if node.broker is not None]
        if not nodes:
            return
        node = self.random.choice(nodes)
        assert node.broker is not None
        controller = node.broker.controller
        wanted = NewTopic(NAME, assignments={0: tuple(self.random.sample((1, 2, 3), 3))}, configs=CONFIGS)
        await _finished(node, controller.delete_topics([NAME]))
        await self.pause(0.2)
        await _finished(node, controller.create_topics([wanted]))
        topic = None if node.broker is None else node.broker.image.topics.get(NAME)
        self.topic_id = None if topic is None else topic.topic_id
        self.world.note("created", NAME, self.topic_id)

    def _leader(self) -> int | None:
        """Of the topic as it is now, by a broker that knows it."""
        for node in self.random.sample(self.world.nodes, len(self.world.nodes)):
            topic = None if node.broker is None else node.broker.image.topics.get(NAME)
            if topic is not None and topic.topic_id == self.topic_id and topic.partitions[0].leader > 0:
                return topic.partitions[0].leader
        return None

    async def _send(self) -> None:
        leader, topic_id = self._leader(), self.topic_id
        if leader is None or topic_id is None:
            return
        value = self.world.new_value()
        self.sent[value] = topic_id
        batch = build_batch([NewRecord(self.world.wall_ms(), None, value.encode())])
        frame = produce_frame(0, batch, WITH_TOPIC_IDS, topic=topic_id.bytes)
        try:
            row = produce_row(await self.ask(leader, frame), topic_id.bytes)
        except ConnectionLost:
            return
        if row.error == 0:
            self.ledgers[topic_id].acked_at(row.base_offset, value)

    async def _delete(self) -> None:
        leader, topic_id = self._leader(), self.topic_id
        acked = self.ledgers[topic_id].acked if topic_id is not None else {}
        broker = None if leader is None else self.world.nodes[leader - 1].broker
        if topic_id is None or broker is None or not acked:
            return
        topic = broker.image.topics.get(NAME)
        if topic is None or topic.topic_id != topic_id:
            return  # it would delete records of the topic that had the name before
        offset = self.random.choice(list(acked)) + 1
        self.asked_to[topic_id] = max(self.asked_to[topic_id], offset)
        wanted = DeleteRecordsPartition(partition_index=i32(0), offset=i64(offset))
        request = DeleteRecordsRequest(
            topics=(DeleteRecordsTopic(name=TopicName(NAME), partitions=(wanted,)),),
            timeout=i32Timedelta.parse(timedelta(seconds=2)),
        )
        try:
            answer = await SimCluster(self).call_broker(broker.node_id, request, DeleteRecordsResponse)
        except ConnectionLost:
            return
        if answer.topics[0].partitions[0].error_code == 0:
            self.deleted_to[topic_id] = max(self.deleted_to[topic_id], offset)
            self.world.note("deleted", offset, broker.node_id)

    def check(self, partition: Partition) -> None:
        """One replica, when all is well again."""
        topic_id = partition.topic_id
        start = partition.log_start_offset
        if start > self.asked_to[topic_id]:
            raise HistoryChanged(f"{partition} begins at {start}, and {self.asked_to[topic_id]} was asked for")
        values = values_of(partition)
        for offset, value in values.items():
            if self.sent[value] != topic_id:
                raise TopicsMixed(f"{partition} of {topic_id} has {value!r} at {offset}, sent to {self.sent[value]}")
        known = Ledger({offset: value for offset, value in self.ledgers[topic_id].acked.items() if offset >= start})
        known.check_log(values, f"{partition} in the end", HistoryChanged)


async def _finished(node: SimNode, work: Coroutine[Any, Any, Any]) -> None:
    """Waits for a change of the cluster; a broker that is cut off or stops may not finish it."""
    task = node.run(work)
    await asyncio.wait({task}, timeout=ADMIN_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Topics:
    """The part of a life that has to do with deletions."""

    topic: str | None = None

    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._client = TopicClient(world, 45)
        self.clients: list[Client] = [self._client]

    async def prepare(self) -> None:
        """The client creates its topic by itself."""

    async def check(self) -> None:
        await self._world.until(self._is_settled, f"the replicas of {NAME}-0 settle")
        await self._world.until(self._is_deleted, f"deleted records of {NAME}-0 are gone from every log", DeletedAgain)
        for partition in self._copies():
            self._client.check(partition)

    def _is_deleted(self) -> bool:
        return all(one.log_start_offset >= self._client.deleted_to[one.topic_id] for one in self._copies())

    def _topic_ids(self) -> set[UUID | None]:
        """As the brokers know it: a change that the client gave up waiting for may have come later."""
        topics = [node.broker.image.topics.get(NAME) for node in self._world.nodes if node.broker is not None]
        return {None if topic is None else topic.topic_id for topic in topics}

    def _copies(self) -> list[Partition]:
        brokers = [node.broker for node in self._world.nodes if node.broker is not None]
        held = [broker.partitions.held(one, 0) for one in self._topic_ids() if one is not None for broker in brokers]
        return [one for one in held if one is not None]

    def _is_settled(self) -> bool:
        topic_ids = self._topic_ids()
        if topic_ids == {None}:
            return True
        copies = self._copies()
        ends = {(one.log_end_offset, one.high_watermark) for one in copies}
        return len(topic_ids) == 1 and len(copies) == len(self._world.nodes) and len(ends) == 1
