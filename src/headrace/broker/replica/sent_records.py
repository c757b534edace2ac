"""Tracks what a leader has sent to each follower, to detect records that a follower has rejected.

A follower that fetches the same records again has not appended them: it may have found a wrong offset, leader epoch
or checksum, or it needs a gap to be confirmed. The leader verifies those bytes, including those that this process
wrote, before it sends them a second time. Corruption is handled as usual (`replication/replica_health.py`).
"""

from bisect import bisect_right
from typing import NamedTuple

from headrace.storage.log import Log
from headrace.storage.log_read import read_again
from headrace.storage.log_types import FileRecords


class Sent(NamedTuple):
    """End of a sent slice. It names the segment by base offset: a reference to the file would keep it on disk."""

    base_offset: int
    end: int


class SentSlices:
    """Slices sent in one leader epoch of one partition."""

    __slots__ = ("_asked_for", "_sent")

    def __init__(self) -> None:
        self._sent: dict[int, Sent] = {}  # by follower: slice of the last response
        self._asked_for: dict[int, Sent] = {}  # by follower: slice after which it has sent another fetch

    def fetched(self, broker: int) -> None:
        """Call once for each fetch request, which may read several times until there are records to send."""
        sent = self._sent.pop(broker, None)
        if sent is not None:
            self._asked_for[broker] = sent

    def read(self, log: Log, broker: int, offset: int, bytes_max: int) -> FileRecords | None:
        found = log.read(offset, bytes_max, log.log_end_offset)
        before = self._asked_for.pop(broker, None)
        if found is None:
            # No batch at an offset below the log end: the offset of the batch that holds it is corrupt.
            return read_again(log, offset, bytes_max, None) if offset < log.log_end_offset else None
        if before is not None and (_base_offset_of(log, offset, found), found.position) < before:
            found = read_again(log, offset, bytes_max, found)
        return found

    def sends(self, log: Log, broker: int, offset: int, records: FileRecords) -> None:
        self._sent[broker] = Sent(_base_offset_of(log, offset, records), records.position + records.length)


def _base_offset_of(log: Log, offset: int, found: FileRecords) -> int:
    first = max(bisect_right(log.segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    return next(segment.base_offset for segment in log.segments[first:] if segment.file is found.file)
