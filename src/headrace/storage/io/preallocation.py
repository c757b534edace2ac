"""Preallocated tail: bytes on disk behind the log end that appends overwrite, so that a sync has less to write.

A sync after an append that extends the file also writes the new length and, on a file system with a journal, a commit
of the journal: up to twice the time of a sync that writes only data (docs/adr/0026). So a log with frequent small
syncs gets a preallocated tail. The tail is not part of the log: no consumer reads it, a segment that is rolled or
closed is trimmed, and after a crash the next start truncates it like a partial write.
"""

from collections.abc import Callable

from headrace.storage.io.file_system import PREALLOCATION_FILL, File

# The tail ends at a page boundary, which is also a block boundary of most file systems. That distinguishes it from a
# partial write.
PREALLOCATION_UNIT = 4096
PREALLOCATED_BYTES = 128 * 1024  # some 700 small batches; 1.3 GB of disk if ten thousand logs were all that busy
# Per sync. With more, the data dominates the time of the sync, and tails would be written about as often as they are
# used.
ROUND_BYTES_MAX = PREALLOCATED_BYTES // 8
# Consecutive small syncs before a tail is written: a partition with occasional records needs none.
ROUNDS_MIN = 8


def always(size: int) -> bool:
    return True


class Preallocator:
    """Decides when one log gets a preallocated tail."""

    __slots__ = ("_base_offset", "_rounds", "_size", "may_take")

    def __init__(self) -> None:
        self.may_take: Callable[[int], bool] = always  # returns whether the free disk space allows so many bytes
        self._base_offset, self._rounds, self._size = -1, 0, 0

    def round_begins(self, base_offset: int, file: File, size_max: int) -> None:
        """Called before a sync of the segment at `base_offset`, which grows to `size_max` at most."""
        if base_offset != self._base_offset:
            self._base_offset, self._rounds, self._size = base_offset, 0, 0
        grown, self._size = file.size - self._size, file.size
        self._rounds = self._rounds + 1 if grown <= ROUND_BYTES_MAX else 0
        # Extended before it is used up: otherwise one sync would write a new file length, and the next one a new tail.
        if self._rounds >= ROUNDS_MIN and file.preallocated_end - file.size < ROUND_BYTES_MAX:
            end = min(file.size + PREALLOCATED_BYTES, size_max)
            self._make_room(file, end - end % PREALLOCATION_UNIT)

    def _make_room(self, file: File, end: int) -> None:
        grows_by = end - max(file.size, file.preallocated_end)
        if grows_by > 0 and self.may_take(grows_by):
            file.preallocate_tail(end)


def is_room(file: File, position: int) -> bool:
    """Returns whether a file that was just opened has only a preallocated tail from `position` on."""
    if file.size % PREALLOCATION_UNIT:
        return False
    while position < file.size:
        data = file.read(position, PREALLOCATED_BYTES)
        if data.count(PREALLOCATION_FILL) < len(data):
            return False
        position += len(data)
    return True
