"""Bringing the outcome of a transaction into a partition: one marker, committed when `written` returns."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.coordinators.remote import write_marker_at
from headrace.broker.partition import Partition
from headrace.core.cluster.values import NO_LEADER
from headrace.core.internal_topics import OFFSETS_TOPIC
from headrace.model.errors import HeadraceError
from headrace.model.ids import TopicPartition
from headrace.records.control import ControlType, EndMarker
from headrace.storage.log_values import Producer

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


class Outcome(NamedTuple):
    """How a producer's transaction ended, as its coordinator says."""

    producer: Producer
    commits: bool
    coordinator_epoch: int
    epoch_was_bumped: bool

    @property
    def marker(self) -> EndMarker:
        return EndMarker(ControlType.COMMIT if self.commits else ControlType.ABORT, self.coordinator_epoch)


class Committed:
    """Waits, on behalf of a coroutine, until what was appended is committed; raises what prevents it."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def failed(self, partition: Partition, error: HeadraceError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


async def committed(partition: Partition, offset: int) -> None:
    if partition.high_watermark < offset:
        waiter = Committed()
        partition.wait_for_commit(offset, waiter)
        await waiter.future


async def write_marker(broker: "Broker", place: TopicPartition, outcome: Outcome) -> None:
    """Append the marker, tell a group coordinator that keeps offsets of the transaction, and wait for the commit."""
    leader = broker.partitions.current_leader(place.topic, place.partition)
    if leader is not None and leader[0] not in (NO_LEADER, broker.node_id):
        await write_marker_at(broker, leader[0], place, outcome)
        return
    partition = broker.partitions.leader(place.topic, place.partition)
    offsets = broker.groups.runtime.shard(place.partition) if place.topic == OFFSETS_TOPIC else None
    next_offset = partition.append_marker(
        outcome.marker, outcome.producer, broker.clock.wall_ms(), epoch_was_bumped=outcome.epoch_was_bumped
    )
    if offsets is not None:
        offsets.machine.transaction_ended(outcome.producer.producer_id, committed=outcome.commits)
    await committed(partition, next_offset)
