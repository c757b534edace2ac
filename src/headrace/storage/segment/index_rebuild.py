"""Rebuilds the indexes of a segment while its log is in use.

A rebuild reads and verifies all batches, which takes seconds for a segment of some hundred MiB. So `read` may run in
a thread: it changes only this object. `apply` is short. Concurrent appends keep their index entries.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from headrace.model.errors import ErrorCode, HeadraceError
from headrace.records.batch import BatchHeader
from headrace.storage.io.file_system import FileSystem
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_index import OffsetIndex, TimeIndex
from headrace.storage.segment.segment_verifier import CorruptRange, SegmentBounds, check_segment


class IndexRebuilding(HeadraceError):
    """The indexes of a segment do not fit its batches and are being rebuilt; the client should retry."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True

    def __init__(self, message: str, rebuilt: Callable[[], Awaitable[None]]) -> None:
        super().__init__(message)
        self.rebuilt = rebuilt  # returns when the rebuild has ended; the retried operation then raises if it has failed


class Rebuilder(Protocol):
    """Rebuilds the indexes of large segments off the event loop."""

    def request(self, segment: LogSegment) -> None:
        """Raises IndexRebuilding if a thread does the rebuild. Returns if the caller may rebuild at once."""


class _Shadow(LogSegment):
    """Snapshot of the segment at the start of the rebuild. It has indexes of its own and changes no file."""

    __slots__ = ("_size",)

    def __init__(self, segment: LogSegment, files: FileSystem) -> None:
        stem = segment.path.removesuffix(".log")
        self.directory, self.base_offset = segment.directory, segment.base_offset
        self._size = segment.size
        self.file, self.epochs, self.checked = segment.file, segment.epochs, type(segment.checked)()
        self.index_interval_bytes = segment.index_interval_bytes
        self.offset_index = OffsetIndex(files, f"{stem}.index")
        self.time_index = TimeIndex(files, f"{stem}.timeindex")
        self.next_offset = segment.next_offset
        self.holes = []
        self.rebuilder = None

    @property
    def size(self) -> int:
        return self._size

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        return super().headers(position, self._size if end is None else end)

    def truncate(self, position: int, next_offset: int) -> None:
        """Does nothing: bytes after the last batch stay."""

    def persist_indexes(self) -> None:
        """Does nothing: the files are written when the indexes are adopted."""


class IndexRebuild:
    """A rebuild.

    Created on the event loop. Then `read` runs in a thread. Then, on the loop and if it `fits`, `apply`.
    """

    def __init__(self, segment: LogSegment) -> None:
        self._segment = segment
        self._shadow = _Shadow(segment, segment.files)
        self._truncations = segment.truncations
        self._known_holes = [*segment.holes]
        self._entries = len(segment.offset_index), len(segment.time_index)

    def read(self) -> None:
        end = self._shadow.next_offset
        check_segment(self._shadow, SegmentBounds(end, end, may_be_cut=False))
        self._shadow.next_offset = end

    def fits(self) -> bool:
        """Returns whether the batches that were read are unchanged; appends may have followed them."""
        return self._truncations == self._segment.truncations

    def apply(self) -> None:
        """Adopts the indexes.

        Raises StorageError if their files cannot be written; the indexes in memory are valid then.
        """
        segment, new = self._segment, self._shadow
        has_grown = segment.size > new.size
        for number in range(self._entries[0], len(segment.offset_index)):
            new.offset_index.append(*segment.offset_index.entry(number))
        for number in range(self._entries[1], len(segment.time_index)):
            new.time_index.note(*segment.time_index.entry(number))
        if has_grown and segment.checked.cover(new.size, segment.size):
            new.checked.add(new.size, segment.size)
        segment.adopt_indexes(new, [*new.holes, *self._new_holes()], has_grown=has_grown)

    def _new_holes(self) -> list[CorruptRange]:
        """Returns the corrupt ranges that were found since the rebuild began."""
        known = {hole.position for hole in (*self._known_holes, *self._shadow.holes)}
        return [hole for hole in self._segment.holes if hole.position not in known]
