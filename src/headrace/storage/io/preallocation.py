"""Room ahead of a log's end: bytes on disk that appends overwrite, so that a sync has less to do.

An append that makes its file longer is synced together with the new length, and where the file system has a journal,
with a commit of that: up to twice the time of a sync that finds nothing but data (docs/adr/0026). So a log that is
synced after every few bytes gets room ahead of its end. It is no part of the log: nobody reads it, a segment that is
full or closed gives it back, and what a crash leaves of it is cut at the next start like half a write.
"""

from collections.abc import Callable

from headrace.storage.io.file_system import PREALLOCATION_FILL, File

# It ends with a page, which is a block of most file systems, too; and so it can be told from half a write.
PREALLOCATION_UNIT = 4096
PREALLOCATED_BYTES = 128 * 1024  # some 700 small batches; if ten thousand logs were all that busy, 1.3 GB of disk
# Of one sync: with more, it is the data that takes the time, and room would be written about as often as it is used.
ROUND_BYTES_MAX = PREALLOCATED_BYTES // 8
# Such syncs in a row before there is room: a partition that gets a message now and then needs none.
ROUNDS_MIN = 8


def always(size: int) -> bool:
    return True


class Preallocator:
    """Of one log: decides when there is to be room."""

    __slots__ = ("_base_offset", "_rounds", "_size", "may_take")

    def __init__(self) -> None:
        self.may_take: Callable[[int], bool] = always  # whether the disk can spare so many bytes
        self._base_offset, self._rounds, self._size = -1, 0, 0

    def round_begins(self, base_offset: int, file: File, size_max: int) -> None:
        """The segment that begins at this offset is about to be synced; it grows to `size_max` at most."""
        if base_offset != self._base_offset:
            self._base_offset, self._rounds, self._size = base_offset, 0, 0
        grown, self._size = file.size - self._size, file.size
        self._rounds = self._rounds + 1 if grown <= ROUND_BYTES_MAX else 0
        # Before it is used up: else one sync would find a file that has grown, and the next one its room.
        if self._rounds >= ROUNDS_MIN and file.preallocated_end - file.size < ROUND_BYTES_MAX:
            end = min(file.size + PREALLOCATED_BYTES, size_max)
            self._make_room(file, end - end % PREALLOCATION_UNIT)

    def _make_room(self, file: File, end: int) -> None:
        grows_by = end - max(file.size, file.preallocated_end)
        if grows_by > 0 and self.may_take(grows_by):
            file.preallocate_tail(end)


def is_room(file: File, position: int) -> bool:
    """Whether a file that was just opened has nothing but room from there on."""
    if file.size % PREALLOCATION_UNIT:
        return False
    while position < file.size:
        data = file.read(position, PREALLOCATED_BYTES)
        if data.count(PREALLOCATION_FILL) < len(data):
            return False
        position += len(data)
    return True
