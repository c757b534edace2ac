"""The short way for a producer that repeats itself: one small batch after the other to the same few partitions.

Whatever is unusual about a request, or goes wrong with it, is left to the handler, which reads it again from its
beginning and says what is to be said. Nothing has happened by then: an append that fails has written nothing.
"""

from typing import TYPE_CHECKING

from headrace.broker.admission import takes_long
from headrace.broker.connection import Connection
from headrace.broker.partition import ACKS_ALL
from headrace.broker.shortcut import LONG_WAY, LongWay
from headrace.model.errors import HeadraceError
from headrace.protocol.api import ApiKey
from headrace.protocol.frames import Parts
from headrace.protocol.produce import PartitionResult
from headrace.protocol.produce_again import Recognised
from headrace.records.batch import is_transactional

if TYPE_CHECKING:
    from headrace.broker.handlers.produce import ProduceHandler


class ProduceShortcut:
    """Of one connection. The connection asks it first."""

    __slots__ = ("_connection", "_handler", "durations", "known")

    def __init__(self, handler: "ProduceHandler", connection: Connection) -> None:
        self._handler = handler
        self._connection = connection
        self.durations = handler.durations
        self.known = Recognised()

    def __call__(self, frame: memoryview) -> Parts | LongWay | None:
        found = self.known.recognise(frame)
        if found is None:
            return LONG_WAY
        place, correlation_id, records = found
        handler = self._handler
        now_ms = handler.clock.wall_ms()
        try:
            partition = handler.partitions.leader(place.topic, place.index)
            if takes_long(records, partition.log.config) or is_transactional(records):
                return LONG_WAY
            if not handler.may_write(self._connection, place.topic):
                return LONG_WAY
            handler.check_room(len(records))
            base_offset, next_offset, append_time_ms, committed = partition.append(records, place.acks, now_ms)
        except HeadraceError:
            return LONG_WAY
        handler.figures.took_in(next_offset - base_offset, len(records))
        log_start_offset = partition.log.log_start_offset
        if committed or place.acks != ACKS_ALL:
            return (place.reply(correlation_id, base_offset, append_time_ms, log_start_offset),)
        row = PartitionResult(place.index, 0, base_offset, append_time_ms, log_start_offset)
        handler.answer_when_committed(self._connection, place, correlation_id, row, partition, next_offset)
        return None


def known_of(handler: "ProduceHandler", connection: Connection) -> Recognised:
    """What the connection has said so far, to be added to."""
    shortcut = connection.shortcuts.get(ApiKey.PRODUCE)
    if not isinstance(shortcut, ProduceShortcut):
        shortcut = connection.shortcuts[ApiKey.PRODUCE] = ProduceShortcut(handler, connection)
    return shortcut.known
