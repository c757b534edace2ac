"""Transaction markers: queued and sent to partition leaders in batches; appended where this broker is the leader.

Appends wait for their commit for a bounded time. A partition whose last marker was not committed in time uses a
separate queue to its broker, so that it does not delay markers for other partitions.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.coordinator.remote_requests import write_markers_at
from headrace.broker.network.inter_broker_client import Peers
from headrace.broker.replica.partition import Partition
from headrace.core.image.model import NO_LEADER
from headrace.core.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.model.errors import HeadraceError, NotLeader, RequestTimedOut
from headrace.model.ids import TopicPartition
from headrace.records.control import ControlType, EndMarker
from headrace.storage.log_types import Producer

if TYPE_CHECKING:
    from headrace.broker.server import Broker


log = logging.getLogger(__name__)

# How long a leader waits for the commit of markers before it returns REQUEST_TIMED_OUT and the coordinator retries.
# Many times longer than a commit takes, and short enough that a partition that cannot commit does not hold a request
# for long.
MARKER_WAIT_S = 1.0
APPENDS_PER_ITERATION_MAX = 64  # about 2 ms of the event loop


class Outcome(NamedTuple):
    """Outcome of a producer's transaction, as decided by its coordinator."""

    producer: Producer
    commits: bool
    coordinator_epoch: int
    uses_tv2: bool

    @property
    def marker(self) -> EndMarker:
        return EndMarker(ControlType.COMMIT if self.commits else ControlType.ABORT, self.coordinator_epoch)


def newest_coordinator_epoch(broker: "Broker") -> int:
    """Returns the highest leader epoch of `__transaction_state`; no coordinator has a higher epoch.

    Returns 0 without the topic: administrators send 0 for a producer whose coordinator epoch is unknown.
    """
    topic = broker.image.topics.get(TRANSACTIONS_TOPIC)
    return 0 if topic is None else max(topic.highest_leader_epoch, 0)


class Committed:
    """Waits, for a coroutine, until an append is committed. The future raises the error that prevents it."""

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
        """Stops waiting. A partition that cannot commit would keep the waiter."""
        if not self.future.done():
            self.future.cancel()
            self._partition.waiters.forget((self,))

    def error(self) -> HeadraceError | None:
        """Returns None if the append is committed, otherwise the error so far."""
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
    """Appends the markers, then waits for all their commits. Returns for each None or the error.

    A marker for a partition that this broker does not lead is rejected; its coordinator looks up the leader.
    """
    appended: list[Committed | HeadraceError] = []
    try:
        for number, (place, outcome) in enumerate(wanted, 1):
            appended.append(_append(broker, place, outcome))
            if number % APPENDS_PER_ITERATION_MAX == 0:
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
    """Appends a marker. An error does not affect the other partitions of the request."""
    try:
        return Committed(*_append_marker(broker, place, outcome))
    except HeadraceError as error:
        return error
    except Exception:
        log.exception("Appending a transaction marker to %s failed", place)
        return HeadraceError(f"a marker could not be appended to {place}")


def _append_marker(broker: "Broker", place: TopicPartition, outcome: Outcome) -> tuple[Partition, int]:
    """Appends the marker. In `__consumer_offsets`, also ends the transaction in the group coordinator."""
    partition = broker.partitions.leader(place.topic, place.partition)
    partition.check_leader()
    offsets = broker.groups.runtime.shard(place.partition) if place.topic == OFFSETS_TOPIC else None
    next_offset = partition.append_marker(
        outcome.marker,
        outcome.producer,
        broker.clock.wall_ms(),
        uses_tv2=outcome.uses_tv2,
        newest_coordinator_epoch=newest_coordinator_epoch(broker),
    )
    if offsets is not None:
        with broker.groups.runtime.applying(offsets):
            offsets.machine.transaction_ended(outcome.producer.producer_id, committed=outcome.commits)
    return partition, next_offset


MARKERS_MAX = 256  # per request; a leader appends them within a few milliseconds
# Requests in flight to one broker. One slow partition, before it is known to be slow, does not block the others.
IN_FLIGHT_MAX = 4
SLOW_IN_FLIGHT_MAX = 1


class Pending(NamedTuple):
    place: TopicPartition
    outcome: Outcome
    done: "asyncio.Future[HeadraceError | None]"


class Lane:
    """Markers queued for one broker, in order of arrival."""

    def __init__(self, node_id: int, in_flight_max: int) -> None:
        self.node_id = node_id
        self.in_flight_max = in_flight_max
        self.in_flight = 0
        self.is_scheduled = False
        self.pending: deque[Pending] = deque()


class MarkerSender:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._peers = Peers(broker)  # separate connections: markers do not delay other requests to the same broker
        self._lanes: dict[tuple[int, bool], Lane] = {}
        self._slow: set[TopicPartition] = set()
        self._requests: set[asyncio.Task[None]] = set()

    async def write(self, place: TopicPartition, outcome: Outcome) -> None:
        """Returns when the marker is committed. Raises the error that the partition's leader returned."""
        leader = self._leader_of(place)
        if leader is None:
            (error,) = await write_markers_here(self._broker, [(place, outcome)])
        else:
            error = await self._queue(leader, place, outcome)
        if isinstance(error, RequestTimedOut):
            self._slow.add(place)
        else:
            self._slow.discard(place)
        if error is not None:
            raise error

    def forget(self, place: TopicPartition) -> None:
        """Drops the state of a partition whose marker another coordinator retries now."""
        self._slow.discard(place)

    def _leader_of(self, place: TopicPartition) -> int | None:
        """Returns the leader if it is another broker.

        None if this broker leads, or if an append here is to return the error.
        """
        known = self._broker.partitions.current_leader(place.topic, place.partition)
        return None if known is None or known[0] in (NO_LEADER, self._broker.node_id) else known[0]

    async def _queue(self, node_id: int, place: TopicPartition, outcome: Outcome) -> HeadraceError | None:
        is_slow = place in self._slow
        lane = self._lanes.get((node_id, is_slow))
        if lane is None:
            lane = self._lanes[node_id, is_slow] = Lane(node_id, SLOW_IN_FLIGHT_MAX if is_slow else IN_FLIGHT_MAX)
        loop = asyncio.get_running_loop()
        pending = Pending(place, outcome, loop.create_future())
        lane.pending.append(pending)
        if not lane.is_scheduled:
            lane.is_scheduled = True
            loop.call_soon(self._send, lane)  # together with the other markers of this event-loop iteration
        return await pending.done

    def _send(self, lane: Lane) -> None:
        lane.is_scheduled = False
        while lane.pending and lane.in_flight < lane.in_flight_max:
            batch = [lane.pending.popleft() for _ in range(min(len(lane.pending), MARKERS_MAX))]
            batch = [one for one in batch if not one.done.done() and not self._has_moved(lane, one)]
            if batch:
                lane.in_flight += 1
                task = asyncio.create_task(self._request(lane, batch))
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)

    def _has_moved(self, lane: Lane, pending: Pending) -> bool:
        """Fails a queued marker whose partition has another leader by now."""
        if self._leader_of(pending.place) == lane.node_id:
            return False
        pending.done.set_result(NotLeader(f"broker {lane.node_id} does not lead {pending.place} any more"))
        return True

    async def _request(self, lane: Lane, batch: list[Pending]) -> None:
        errors: list[HeadraceError | None]
        try:
            wanted = [(one.place, one.outcome) for one in batch]
            errors = await write_markers_at(self._peers, lane.node_id, wanted)
        except HeadraceError as error:
            errors = [error] * len(batch)
        except Exception:
            log.exception("Sending %d transaction markers to broker %d failed", len(batch), lane.node_id)
            errors = [HeadraceError("the markers could not be sent")] * len(batch)
        finally:
            lane.in_flight -= 1
        for pending, result in zip(batch, errors, strict=True):
            if not pending.done.done():
                pending.done.set_result(result)
        self._send(lane)

    async def close(self) -> None:
        requests = list(self._requests)
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        self._peers.close()
