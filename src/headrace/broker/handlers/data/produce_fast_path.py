"""Fast path for a producer that sends one small batch after another to the same few partitions.

Unusual or failing requests fall back to the handler, which parses them from the start and returns the error. No side
effect precedes the fallback: a failed append has written nothing.
"""

from typing import TYPE_CHECKING

from headrace.broker.api.fast_path import FALLBACK, CoalescedRequests, LongWay
from headrace.broker.network.connection import Connection
from headrace.broker.replica.log_validator import needs_thread
from headrace.broker.replica.partition import ACKS_ALL, Partition
from headrace.core.topic import INTERNAL_TOPICS
from headrace.model.errors import HeadraceError
from headrace.protocol.api import ApiKey
from headrace.protocol.frames import Parts
from headrace.protocol.produce_fast_path import ProduceTemplate, ProduceTemplates
from headrace.records.batch import is_transactional

if TYPE_CHECKING:
    from headrace.broker.handlers.data.produce import ProduceHandler


class ProduceFastPath:
    """Fast path of one connection."""

    __slots__ = ("_connection", "_handler", "durations", "known")

    def __init__(self, handler: "ProduceHandler", connection: Connection) -> None:
        self._handler = handler
        self._connection = connection
        self.durations = handler.durations
        self.known = ProduceTemplates()

    def __call__(self, frame: memoryview) -> Parts | LongWay | None:
        found = self.known.recognise(frame)
        if found is None:
            return FALLBACK
        place, correlation_id, records = found
        handler = self._handler
        now_ms = handler.clock.wall_ms()
        try:
            partition = self._partition_for(place, records)
            if partition is None:
                return FALLBACK
            base_offset, next_offset, append_time_ms, committed = partition.append(records, place.acks, now_ms)
        except HeadraceError:
            return FALLBACK
        handler.figures.took_in(next_offset - base_offset, len(records))
        row = (correlation_id, base_offset, append_time_ms, partition.log.log_start_offset)
        if committed or place.acks != ACKS_ALL:
            return (place.reply(*row),)
        handler.answer_when_committed(self._connection, place, (row,), partition, next_offset)
        return None

    def run(self, view: memoryview, position: int, end: int, most: int) -> CoalescedRequests | None:
        """Appends the batches of consecutive requests to one partition with one write."""
        found = self.known.recognise_run(view, position, end, most)
        if found is None:
            return None
        place, requests, after = found
        handler = self._handler
        batches = [records for _, records in requests]
        try:
            partition = self._partition_for(place, *batches)
            appended = partition and partition.append_run(batches, place.acks, handler.clock.wall_ms())
        except HeadraceError:
            return None
        if not partition or not appended:
            return None
        self._connection.durations = self.durations
        places, next_offset, committed = appended
        handler.figures.took_in(next_offset - places[0][0], sum(map(len, batches)), len(batches))
        log_start = partition.log.log_start_offset
        rows = [
            (number, base_offset, append_time_ms, log_start)
            for (number, _), (base_offset, append_time_ms) in zip(requests, places, strict=True)
        ]
        if committed or place.acks != ACKS_ALL:
            return CoalescedRequests(place.replies(rows), after, len(rows))
        handler.answer_when_committed(self._connection, place, rows, partition, next_offset)
        return CoalescedRequests(None, after, len(rows))

    def _partition_for(self, place: ProduceTemplate, *batches: memoryview) -> Partition | None:
        """Returns the partition, or None if the requests need the handler."""
        handler = self._handler
        partition = handler.partitions.leader(place.topic, place.index)
        if partition.topic in INTERNAL_TOPICS:
            return None
        config = partition.log.config
        for records in batches:
            if needs_thread(records, config) or is_transactional(records):
                return None
        if not handler.may_write(self._connection, place.topic):
            return None
        handler.check_free_space(sum(map(len, batches)))
        return partition


def known_of(handler: "ProduceHandler", connection: Connection) -> ProduceTemplates:
    """Returns the connection's request templates; registers the fast path on first use."""
    shortcut = connection.shortcuts.get(ApiKey.PRODUCE)
    if not isinstance(shortcut, ProduceFastPath):
        shortcut = connection.shortcuts[ApiKey.PRODUCE] = ProduceFastPath(handler, connection)
        connection.takes_runs = shortcut
    return shortcut.known
