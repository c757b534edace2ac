"""A client that asks where partitions end, as readers do that begin at the end or stop there."""

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v10.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from headrace.client.aio.broker_connection import ConnectionLost
from headrace.protocol.messages.list_offsets import LATEST
from tests.simulation.cluster_calls import SimCluster
from tests.simulation.cluster_clients import TOPIC, Client, Until
from tests.simulation.cluster_promises import LatestTooLow

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld


class LatestClient(Client):
    async def run(self, until: Until) -> None:
        while not until():
            await self.pause(0.1)
            index = self.random.randrange(self.world.partition_count)
            leader = self.leader_of(index)
            if leader is not None:
                await self._ask(leader, index)

    async def _ask(self, leader: int, index: int) -> None:
        known = self.world.ledgers[index].certain()
        epoch = self.world.epochs[index]
        query = ListOffsetsPartition(partition_index=i32(index), current_leader_epoch=i32(-1), timestamp=i64(LATEST))
        request = ListOffsetsRequest(
            replica_id=BrokerId(-1),
            isolation_level=i8(0),
            topics=(ListOffsetsTopic(name=TopicName(TOPIC), partitions=(query,)),),
            timeout=i32Timedelta.parse(timedelta(milliseconds=500)),
        )
        try:
            answer = await SimCluster(self).call_broker(leader, request, ListOffsetsResponse)
        except ConnectionLost:
            return
        row = answer.topics[0].partitions[0]
        # A leader of an earlier epoch that does not know of its successor tells an older end, as in Kafka.
        if row.error_code == 0 and row.leader_epoch >= epoch and row.offset <= max(known, default=-1):
            raise LatestTooLow(f"{TOPIC}-{index}: LATEST is {row.offset}, and {max(known)} was there before")


class Ends:
    """The part of a life that has to do with the ends of partitions."""

    topic: str | None = None

    def __init__(self, world: "ClusterWorld") -> None:
        self.clients: list[Client] = [LatestClient(world, 40), LatestClient(world, 41)]

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def check(self) -> None:
        """All is checked when it is told."""
