"""Proposals of a leader: repeated until their outcome is known, and no longer than the partition is led here."""

from collections.abc import Callable, Sequence
from typing import cast

import pytest

from headrace.broker.replica.partition import Partition
from headrace.broker.replication.alter_partition_manager import AlterPartitionManager
from headrace.broker.server import Broker
from headrace.config.settings import Settings
from headrace.core.controller.alter_partition import AlterPartitionItem
from headrace.core.image.model import PartitionRegistration
from headrace.model.errors import StorageError
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.testing.simulation.clock import SimClock
from tests.unit.broker.partition_kit import new_partition, produce

STATE = PartitionRegistration(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=0, partition_epoch=1)


class StandInBroker:
    """As much of a Broker as an AlterPartitionManager sees. Its metadata store loses every response."""

    def __init__(self) -> None:
        self.settings = Settings(data_dir="/data")
        self.clock = SimClock()
        self.controller = self.states = self
        self.image = None
        self.proposed: list[AlterPartitionItem] = []

    async def alter_partition(self, proposals: Sequence[AlterPartitionItem]) -> list[AlterPartitionItem]:
        self.proposed += proposals
        return []


def follow_another_leader(partition: Partition) -> None:
    partition.follow(STATE._replace(leader=2, leader_epoch=1, partition_epoch=2))


ENDS = [
    follow_another_leader,
    lambda partition: partition.retire(),
    lambda partition: partition.retire(moved=True),
    lambda partition: partition.go_offline(StorageError("EIO")),
]


@pytest.mark.parametrize("end", ENDS, ids=["another leader", "deleted", "moved", "failed"])
async def test_proposal_ends_with_its_partition(end: Callable[[Partition], None]) -> None:
    broker = StandInBroker()
    keeper = AlterPartitionManager(cast(Broker, broker))
    partition = new_partition(MemoryFiles(), None)
    partition.follow(STATE, broker.clock.monotonic_ms())
    produce(partition, "not fetched")
    broker.clock.advance_ms(broker.settings.integer("replica.lag.time.max.ms") + 1)
    keeper._news[partition] = None
    for _ in range(2):
        await keeper._propose()
    assert [one.isr for one in broker.proposed] == [(1,), (1,)]
    end(partition)
    await keeper._propose()
    assert len(broker.proposed) == 2
    assert not keeper._unsettled
