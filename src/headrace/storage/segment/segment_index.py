"""Sparse indexes of one segment: from offset to byte position, and from timestamp to offset.

    .index      (relative offset u32, position u32)…     one entry every `index.interval.bytes`
    .timeindex  (timestamp i64, relative offset u32)…    timestamps ascending

An entry of `.index` names the *last* offset of a batch and the position where that batch starts, as Kafka writes it.
Both indexes are kept in memory as the bytes of their file and are searched in place. An index file is rebuilt from
the log if it is missing or does not match, so that it needs no fsync.
"""

from bisect import bisect_right
from struct import Struct

from headrace.storage.io.file_system import FileSystem


class SparseIndex:
    """Entries of two numbers, ascending by the first, kept as the bytes of the file."""

    ENTRY: Struct

    __slots__ = ("_buffer", "_count", "_files", "_path", "_persisted", "was_loaded")

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._buffer = bytearray()
        self._count = 0
        self._persisted = 0  # bytes of the buffer that the file already contains
        self.was_loaded = False  # entries that this process has not written are unverified

    def load(self) -> bool:
        """Reads the file; returns False if there is none or its size is no multiple of an entry."""
        try:
            data = self._files.read(self._path)
        except FileNotFoundError:
            return False
        if len(data) % self.ENTRY.size:
            return False
        self._buffer = bytearray(data)
        self._count = len(data) // self.ENTRY.size
        self._persisted = len(data)
        self.was_loaded = True
        return True

    def __len__(self) -> int:
        return self._count

    def entry(self, number: int) -> tuple[int, int]:
        first, second = self.ENTRY.unpack_from(self._buffer, number * self.ENTRY.size)
        return first, second

    @property
    def last(self) -> tuple[int, int] | None:
        return self.entry(self._count - 1) if self._count else None

    def append(self, first: int, second: int) -> None:
        self._buffer += self.ENTRY.pack(first, second)
        self._count += 1

    def at_or_before(self, first: int) -> tuple[int, int] | None:
        """Returns the last entry whose first number is at most `first`."""
        number = bisect_right(range(self._count), first, key=lambda at: self.entry(at)[0])
        return self.entry(number - 1) if number else None

    def keep(self, count: int) -> None:
        """Removes every entry from number `count` on."""
        del self._buffer[count * self.ENTRY.size :]
        self._count = count
        if self._persisted > len(self._buffer):
            self._persisted = -1  # the file is longer than the buffer: it has to be rewritten

    def clear(self) -> None:
        self.keep(0)
        self.was_loaded = False

    def persist(self) -> None:
        if self._persisted == len(self._buffer) and self._files.exists(self._path):
            return
        file = self._files.open(self._path, create=True)
        if file.size != self._persisted:
            file.truncate(0)
            self._persisted = 0
        file.append(memoryview(bytes(self._buffer[self._persisted :])))
        file.close()
        self._persisted = len(self._buffer)


class OffsetIndex(SparseIndex):
    ENTRY = Struct(">II")
    __slots__ = ()

    def position_at_or_before(self, relative_offset: int) -> int:
        """Returns the position from which to scan for the offset."""
        entry = self.at_or_before(relative_offset)
        return entry[1] if entry else 0

    def last_before_position(self, position: int) -> tuple[int, int] | None:
        """Returns the last entry whose batch starts at or before `position`: positions ascend together with offsets."""
        number = bisect_right(range(len(self)), position, key=lambda at: self.entry(at)[1])
        return self.entry(number - 1) if number else None

    def truncate_to_position(self, position: int) -> None:
        """Removes entries of batches that start at or after `position`."""
        self.keep(bisect_right(range(len(self)), position - 1, key=lambda at: self.entry(at)[1]))


class TimeIndex(SparseIndex):
    ENTRY = Struct(">qI")
    __slots__ = ()

    def note(self, timestamp: int, relative_offset: int) -> None:
        """Adds an entry if it moves both timestamp and offset forward; both ascend in the file."""
        last = self.last
        if last is None or (timestamp > last[0] and relative_offset > last[1]):
            self.append(timestamp, relative_offset)

    def truncate_to_offset(self, relative_offset: int) -> None:
        """Removes entries at or after the offset."""
        self.keep(bisect_right(range(len(self)), relative_offset - 1, key=lambda at: self.entry(at)[1]))
