"""The promises of replication, checked on the brokers themselves: at every election, and of all replicas in the end."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.replica.partition import Partition
from tests.simulation.cluster_clients import TOPIC
from tests.simulation.cluster_promises import (
    MARKER,
    BrokenPromise,
    HistoryChanged,
    LeaderIncomplete,
    ReplicasDiffer,
    TwoLeaders,
    values_of,
)

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld


class Inspector:
    def __init__(self, world: "ClusterWorld") -> None:
        self._world = world
        self._led: dict[tuple[int, int], int] = {}

    async def watch_leaders(self) -> None:
        """At every election, the new leader's log is compared with what clients know."""
        while True:
            await asyncio.sleep(0.01)
            for node in self._world.nodes:
                broker = node.broker
                for index in range(self._world.partition_count):
                    partition = broker.partitions.held(TOPIC, index) if broker is not None else None
                    if partition is not None and partition.leadership is not None:
                        self._leads(node.node_id, partition)

    def _leads(self, node: int, partition: Partition) -> None:
        term = (partition.index, partition.leader_epoch)
        if self._led.get(term) == node:
            return
        try:
            if term in self._led and not self._is_free_again(partition):
                raise TwoLeaders(f"brokers {self._led[term]} and {node} both lead in epoch {term[1]}")
            self._led[term] = node
            self._world.note("leads", partition.index, partition.leader_epoch, node)
            if all(other.leader_epoch <= term[1] for other in self.copies(partition.index)):
                whose = f"the new leader {node} of {partition}"
                self._world.ledgers[partition.index].check_log(values_of(partition), whose, LeaderIncomplete)
        except BrokenPromise as error:
            self._world.broken = self._world.broken or error

    def _is_free_again(self, partition: Partition) -> bool:
        """After metadata was restored, an epoch begins a second time. That is no harm if no log has records of it."""
        assert partition.leadership is not None
        start, epoch = partition.leadership.epoch_start, partition.leader_epoch
        found = [entry for copy in self.copies(partition.index) for entry in copy.log.epochs.entries()]
        return self._world.was_restored and not any(one == epoch and offset < start for one, offset in found)

    def copies(self, index: int) -> list[Partition]:
        held = [node.broker.partitions.held(TOPIC, index) for node in self._world.nodes if node.broker is not None]
        return [partition for partition in held if partition is not None]

    async def compare(self) -> None:
        """Everything that was promised is on every replica, and all replicas are the same."""
        for index, ledger in enumerate(self._world.ledgers):
            settled = partial(self._is_settled, index)
            await self._world.until(settled, f"the replicas of {TOPIC}-{index} settle")
            first, *others = [values_of(partition) for partition in self.copies(index)]
            ledger.check_log(first, f"{TOPIC}-{index} in the end", HistoryChanged)
            if any(other != first for other in others):
                raise ReplicasDiffer(f"the replicas of {TOPIC}-{index} differ: {first} {others}")
            counted = [value for value in first.values() if not value.startswith(MARKER)]
            if len(set(counted)) != len(counted):
                raise ReplicasDiffer(f"a record is twice in {TOPIC}-{index}")

    def _is_settled(self, index: int) -> bool:
        copies = self.copies(index)
        ends = {(one.log_end_offset, one.high_watermark) for one in copies}
        return len(copies) == len(self._world.nodes) and len(ends) == 1 and len({*ends.pop()}) == 1
