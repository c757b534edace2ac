"""What a leader has sent to each follower, so that it notices which of it a follower has rejected.

A follower that fetches once more what it was sent has not appended it: it may have found that an offset, a leader epoch
or a checksum is wrong, or it wants a gap to be confirmed. The leader checks those bytes again, also those that this
process has written itself, before it sends them a second time. Damage that it finds is handled like any other
(`replication/health.py`).
"""

from bisect import bisect_right
from typing import NamedTuple

from headrace.storage.log import Log
from headrace.storage.log_read import read_again
from headrace.storage.log_types import FileRecords


class Sent(NamedTuple):
    """Where a slice ended. Names the segment by its offset: a file that is referred to here would stay on disk."""

    base_offset: int
    end: int


class SentSlices:
    """One leader epoch of one partition."""

    __slots__ = ("_asked_for", "_sent")

    def __init__(self) -> None:
        self._sent: dict[int, Sent] = {}  # to each follower with the last response
        self._asked_for: dict[int, Sent] = {}  # that a follower has answered with another fetch

    def fetched(self, broker: int) -> None:
        """Called once for each request, which may read several times until there is something to send."""
        sent = self._sent.pop(broker, None)
        if sent is not None:
            self._asked_for[broker] = sent

    def read(self, log: Log, broker: int, offset: int, bytes_max: int) -> FileRecords | None:
        found = log.read(offset, bytes_max, log.log_end_offset)
        before = self._asked_for.pop(broker, None)
        if found is None:
            # Nothing at an offset below the end: the offset of the batch that holds it has changed.
            return read_again(log, offset, bytes_max, None) if offset < log.log_end_offset else None
        if before is not None and (_base_offset_of(log, offset, found), found.position) < before:
            found = read_again(log, offset, bytes_max, found)
        return found

    def sends(self, log: Log, broker: int, offset: int, records: FileRecords) -> None:
        self._sent[broker] = Sent(_base_offset_of(log, offset, records), records.position + records.length)


def _base_offset_of(log: Log, offset: int, found: FileRecords) -> int:
    first = max(bisect_right(log.segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    return next(segment.base_offset for segment in log.segments[first:] if segment.file is found.file)
