"""Markers of transactions in partitions that this broker leads: appended, and awaited for a bounded time."""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.partition import Partition
from headrace.core.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.model.errors import HeadraceError, RequestTimedOut
from headrace.model.ids import TopicPartition
from headrace.records.control import ControlType, EndMarker
from headrace.storage.log_values import Producer

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

# How long a leader waits for the commit of markers before it returns REQUEST_TIMED_OUT, and the coordinator retries:
# many times what a commit takes, and short enough that a partition that cannot commit holds no request for long.
MARKER_WAIT_S = 1.0
APPENDS_PER_TURN_MAX = 64  # some two milliseconds of the event loop


class Outcome(NamedTuple):
    """How a producer's transaction ended, as its coordinator says."""

    producer: Producer
    commits: bool
    coordinator_epoch: int
    epoch_was_bumped: bool

    @property
    def marker(self) -> EndMarker:
        return EndMarker(ControlType.COMMIT if self.commits else ControlType.ABORT, self.coordinator_epoch)


def newest_coordinator_epoch(broker: "Broker") -> int:
    """The highest leader epoch of `__transaction_state`: no coordinator's epoch is above it.

    0 without the topic: administrators send that for a producer whose coordinator epoch is not known.
    """
    topic = broker.image.topics.get(TRANSACTIONS_TOPIC)
    return 0 if topic is None else max(topic.highest_leader_epoch, 0)


class Committed:
    """Waits, on behalf of a coroutine, until what was appended is committed; raises what prevents it."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self._partition = partition
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if partition.high_watermark < offset:
            partition.wait_for_commit(offset, self)
        else:
            self.future.set_result(None)

    def committed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def failed(self, partition: Partition, error: HeadraceError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def withdraw(self) -> None:
        """Wait no longer. A partition that cannot commit would keep the waiter."""
        if not self.future.done():
            self.future.cancel()
            self._partition.waiters.forget((self,))

    def error(self) -> HeadraceError | None:
        """What prevented the commit by now; None if it is committed."""
        if not self.future.done():
            return RequestTimedOut(f"the marker in {self._partition} is not committed within {MARKER_WAIT_S} s")
        error = self.future.exception()
        assert error is None or isinstance(error, HeadraceError), "waiters fail with errors of the partition"
        return error


async def committed(partition: Partition, offset: int) -> None:
    waiter = Committed(partition, offset)
    try:
        await waiter.future
    finally:
        waiter.withdraw()


async def write_markers_here(
    broker: "Broker", wanted: Sequence[tuple[TopicPartition, Outcome]]
) -> list[HeadraceError | None]:
    """Append the markers, then wait for their commits together; for each, None or what prevents its commit.

    A marker for a partition that this broker does not lead is rejected: its coordinator looks for the leader.
    """
    appended: list[Committed | HeadraceError] = []
    try:
        for number, (place, outcome) in enumerate(wanted, 1):
            appended.append(_append(broker, place, outcome))
            if number % APPENDS_PER_TURN_MAX == 0:
                await asyncio.sleep(0)
        open_commits = [one.future for one in appended if isinstance(one, Committed) and not one.future.done()]
        if open_commits:
            await asyncio.wait(open_commits, timeout=MARKER_WAIT_S)
        return [one.error() if isinstance(one, Committed) else one for one in appended]
    finally:
        for one in appended:
            if isinstance(one, Committed):
                one.withdraw()


def _append(broker: "Broker", place: TopicPartition, outcome: Outcome) -> Committed | HeadraceError:
    """One partition that fails does not affect the others of its request."""
    try:
        return Committed(*_append_marker(broker, place, outcome))
    except HeadraceError as error:
        return error
    except Exception:
        log.exception("Appending a transaction marker to %s failed", place)
        return HeadraceError(f"a marker could not be appended to {place}")


def _append_marker(broker: "Broker", place: TopicPartition, outcome: Outcome) -> tuple[Partition, int]:
    """Append the marker, and end the transaction in a group coordinator that keeps offsets of it."""
    partition = broker.partitions.leader(place.topic, place.partition)
    partition.check_leader()
    offsets = broker.groups.runtime.shard(place.partition) if place.topic == OFFSETS_TOPIC else None
    next_offset = partition.append_marker(
        outcome.marker,
        outcome.producer,
        broker.clock.wall_ms(),
        epoch_was_bumped=outcome.epoch_was_bumped,
        newest_coordinator_epoch=newest_coordinator_epoch(broker),
    )
    if offsets is not None:
        with broker.groups.runtime.applying(offsets):
            offsets.machine.transaction_ended(outcome.producer.producer_id, committed=outcome.commits)
    return partition, next_offset
