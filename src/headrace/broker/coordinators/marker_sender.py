"""Sends the markers of a transaction coordinator to the leaders of their partitions, in batches for each broker.

A partition whose last marker was not committed in time has a lane of its own to its broker, so that it delays no
marker for another partition.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.coordinators.markers import Outcome, write_markers_here
from headrace.broker.coordinators.remote import write_markers_at
from headrace.broker.peers import Peers
from headrace.core.cluster.values import NO_LEADER
from headrace.model.errors import HeadraceError, NotLeader, RequestTimedOut
from headrace.model.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

MARKERS_MAX = 256  # in one request: a leader appends them within a few milliseconds
# Requests in flight to one broker. One slow partition, before it is known as slow, leaves the others free.
IN_FLIGHT_MAX = 4
SLOW_IN_FLIGHT_MAX = 1


class Pending(NamedTuple):
    place: TopicPartition
    outcome: Outcome
    done: "asyncio.Future[HeadraceError | None]"


class Lane:
    """Markers for one broker, in the order in which they came."""

    def __init__(self, node_id: int, in_flight_max: int) -> None:
        self.node_id = node_id
        self.in_flight_max = in_flight_max
        self.in_flight = 0
        self.is_scheduled = False
        self.pending: deque[Pending] = deque()


class MarkerSender:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._peers = Peers(broker)  # of its own: other requests to the same broker leave it its connections
        self._lanes: dict[tuple[int, bool], Lane] = {}
        self._slow: set[TopicPartition] = set()
        self._requests: set[asyncio.Task[None]] = set()

    async def write(self, place: TopicPartition, outcome: Outcome) -> None:
        """Returns when the marker is committed; raises what the partition's leader returned."""
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
        """The coordinator of a marker has moved, and its retries have ended here."""
        self._slow.discard(place)

    def _leader_of(self, place: TopicPartition) -> int | None:
        """Another broker; None if this one is to find out what is wrong, or leads."""
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
        """The marker waited for its turn, and its partition has another leader since."""
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
