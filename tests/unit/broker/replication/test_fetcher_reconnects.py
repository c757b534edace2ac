"""Which closed connections a fetcher logs: those that it has not closed itself."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.replica.partition import Partition
from headrace.broker.replication.replica_fetcher import ReplicaFetcher
from headrace.client.aio.broker_connection import ConnectionLost
from headrace.core.image.model import PartitionRegistration
from headrace.testing.simulation.files import SimFiles
from tests.unit.broker.partition_kit import new_partition

LEADER = 2
FOLLOWING = PartitionRegistration(replicas=(1, LEADER), isr=(LEADER,), leader=LEADER, leader_epoch=0, partition_epoch=1)


class Silent:
    """A leader that answers no fetch."""

    def __init__(self) -> None:
        self._answer = asyncio.get_running_loop().create_future()

    async def exchange(self, frame: bytes) -> memoryview:
        answer: memoryview = await self._answer
        return answer

    def close(self) -> None:
        if not self._answer.done():
            self._answer.set_exception(ConnectionLost("the connection was closed"))


def following(index: int) -> Partition:
    partition = new_partition(SimFiles(), None)
    partition.index = index
    partition.follow(FOLLOWING)
    return partition


async def test_fetcher_logs_a_lost_connection_and_not_one_it_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    connections: asyncio.Queue[Silent] = asyncio.Queue()

    async def connect(node_id: int) -> Any:
        leader = Silent()
        connections.put_nowait(leader)
        return leader

    broker: Any = SimpleNamespace(
        settings=SimpleNamespace(integer=lambda name: 60_000),
        clock=None,
        node_id=1,
        controller=SimpleNamespace(broker_epoch=1),
    )
    throttles: Any = SimpleNamespace(wait_s=lambda partition: 0.0)
    fetcher = ReplicaFetcher(broker, LEADER, connect, throttles)
    fetcher.add(following(0))
    await connections.get()
    fetcher.add(following(1))  # a new topic: the fetch that waits does not ask for it
    second = await connections.get()
    assert caplog.messages == []
    second.close()
    await connections.get()
    assert caplog.messages == ["broker 2: the connection was closed"]
    await fetcher.stop()
