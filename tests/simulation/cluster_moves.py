"""Reassignments in a simulated cluster: replicas leave, come back, and change their order, whatever else happens."""

from typing import TYPE_CHECKING

from kio.schema.alter_partition_reassignments.v1.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.alter_partition_reassignments.v1.response import AlterPartitionReassignmentsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from headrace.client.aio.broker_connection import ConnectionLost
from tests.simulation.cluster_calls import SimCluster
from tests.simulation.cluster_clients import TOPIC, Client, Until

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld

TRIES_MAX = 100  # half a second each: nothing is wrong any more that could hold one up


class Mover(Client):
    """Moves what it likes while there is trouble, and everything back to everybody in the calm."""

    async def run(self, until: Until) -> None:
        nodes = [node.node_id for node in self.world.nodes]
        while not until():
            topic, index = self.random.choice(self._partitions())
            if not self.world.is_calm:
                await self._move(topic, index, self.random.sample(nodes, self.random.choice([2, 2, 3])))
                await self.pause(3.0)
            else:
                if not self._is_everywhere(topic, index):
                    await self._move(topic, index, nodes)
                await self.pause(0.5)
        await self._put_back(nodes)

    async def _put_back(self, nodes: list[int]) -> None:
        """A move that was under way when the calm began may have come after everything was back."""
        for topic, index in self._partitions():
            for _ in range(TRIES_MAX):
                if self.world.broken is not None or self._is_everywhere(topic, index):
                    break
                await self._move(topic, index, nodes)
                await self.pause(0.5)

    def _partitions(self) -> list[tuple[str, int]]:
        """Those of the topic, and those that coordinators live in, if there are any."""
        counts = {TOPIC: self.world.partition_count, **self.world.internal_topics}
        return [(topic, index) for topic, count in counts.items() for index in range(count)]

    def _is_everywhere(self, topic: str, index: int) -> bool:
        brokers = [node.broker for node in self.world.nodes if node.broker is not None]
        states = [broker.image.topics[topic].partitions[index] for broker in brokers if topic in broker.image.topics]
        return bool(states) and all(
            len(state.replicas) == len(self.world.nodes) and not state.removing for state in states
        )

    async def _move(self, topic: str, index: int, replicas: list[int]) -> None:
        up = [node.node_id for node in self.world.nodes if node.is_up]
        if not up:
            return
        wanted = ReassignablePartition(
            partition_index=i32(index), replicas=tuple(BrokerId(replica) for replica in replicas)
        )
        request = AlterPartitionReassignmentsRequest(
            topics=(ReassignableTopic(name=TopicName(topic), partitions=(wanted,)),)
        )
        try:
            answer = await SimCluster(self).call_broker(
                self.random.choice(up), request, AlterPartitionReassignmentsResponse
            )
        except ConnectionLost:
            return
        codes = [int(row.error_code) for one in answer.responses for row in one.partitions]
        self.world.note("moved", topic, index, replicas, codes or int(answer.error_code))


class Moves:
    """The part of a life that has to do with reassignments. What was moved is checked as everything else is."""

    topic: str | None = None

    def __init__(self, world: "ClusterWorld") -> None:
        self.clients: list[Client] = [Mover(world, 30)]

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def check(self) -> None:
        """All replicas are compared in the end, wherever they have been."""
