"""One segment of a log: a file of batches with its two indexes.

Appends go to the end. A lookup starts from the sparse index and scans batch headers. The segment maps offsets to byte
positions and records which bytes are verified; leaders, high watermarks and retention are handled elsewhere. An index
is a hint: an entry that was read from a file is used once the batch that it names has been found there.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING

from headrace.model.errors import CorruptLog
from headrace.records.batch import HEADER_BYTES, LENGTH_OVERHEAD, BatchHeader, parse_header
from headrace.storage.epoch.leader_epoch_cache import LeaderEpochFileCache
from headrace.storage.io.file_system import Bytes, File, FileSystem
from headrace.storage.segment import segment_verifier
from headrace.storage.segment.corrupt_ranges import CheckedRanges
from headrace.storage.segment.segment_index import OffsetIndex, TimeIndex
from headrace.storage.segment.segment_verifier import FORMAT_VERSION, UNKNOWN, CorruptRange, SegmentBounds
from headrace.storage.segment.transaction_index import NO_ENTRIES, SegmentTransactionIndex

if TYPE_CHECKING:
    from headrace.storage.segment.index_rebuild import Rebuilder

log = logging.getLogger(__name__)

# One read while scanning small batches: twice the default index interval covers a lookup with one read.
SCAN_BYTES = 8 * 1024
RELATIVE_OFFSET_MAX = 2**31 - 1  # Kafka reads relative offsets as signed
POSITION_MAX = 2**31 - 1  # and positions too
# 22 ms per MiB of small batches, which is rare. A longer rebuild would delay a request too much.
REINDEX_AT_ONCE_BYTES = 1024 * 1024

_OFFSET_AND_LENGTH = Struct(">qi")
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_MAGIC_AT = 16


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class LogSegment:
    __slots__ = (
        "_bytes_since_index_entry",
        "aborted",
        "base_offset",
        "checked",
        "directory",
        "epochs",
        "file",
        "files",
        "first_epoch",
        "first_timestamp",
        "holes",
        "index_interval_bytes",
        "last_epoch",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "offset_index",
        "opened_ms",
        "rebuilder",
        "time_index",
        "truncations",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        create: bool,
        now_ms: int,
    ) -> None:
        self.files = files
        self.directory = directory
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self._bytes_since_index_entry = 0
        stem = f"{directory}/{segment_name(base_offset)}"
        self.file: File = files.open(f"{stem}.log", create=create)
        self.offset_index = OffsetIndex(files, f"{stem}.index")
        self.time_index = TimeIndex(files, f"{stem}.timeindex")
        self.aborted = SegmentTransactionIndex(files, stem, base_offset)
        if create:
            self.aborted.sum = NO_ENTRIES
        self.next_offset = base_offset
        self.first_timestamp = -1
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.opened_ms = now_ms
        self.checked = CheckedRanges()
        self.holes: list[CorruptRange] = []
        self.epochs: LeaderEpochFileCache | None = None  # of the log that it belongs to
        self.rebuilder: Rebuilder | None = None  # of a log that a broker serves
        self.truncations = 0
        self.first_epoch = self.last_epoch = UNKNOWN  # of the batches that were there when the segment was opened

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def modified_ms(self) -> int:
        """Returns the time of the last write to the file. A system call: for retention, not for appends."""
        return self.file.modified_ms()

    @property
    def path(self) -> str:
        return f"{self.directory}/{segment_name(self.base_offset)}.log"

    # Writing

    def append(self, batch: Bytes, header: BatchHeader) -> int:
        """Appends a batch whose checksum the caller has verified. Returns its position."""
        position = self.file.size
        self.file.append(batch)
        if self.first_timestamp < 0:
            self.first_timestamp = header.max_timestamp
        self.index_batch(position, header)
        self.checked.add(position, self.file.size)
        return position

    def append_all(self, batches: Bytes, headers: Iterable[BatchHeader]) -> None:
        """Appends contiguous batches with one write to a file that is not empty."""
        position = self.file.size
        self.file.append(batches)
        self.checked.add(position, self.file.size)
        for header in headers:
            self.index_batch(position, header)
            position += header.length + LENGTH_OVERHEAD

    def index_batch(self, position: int, header: BatchHeader) -> None:
        """Updates indexes and counters for a batch at `position`, after an append and during recovery."""
        last_offset = header.base_offset + header.last_offset_delta
        self.next_offset = last_offset + 1
        # a batch without records has no timestamp
        if header.max_timestamp > self.max_timestamp and header.record_count:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = last_offset
        relative_offset = last_offset - self.base_offset
        if self._bytes_since_index_entry > self.index_interval_bytes and relative_offset <= RELATIVE_OFFSET_MAX:
            self.offset_index.append(relative_offset, position)
            self._note_time()
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += header.length + LENGTH_OVERHEAD

    def has_room_for(
        self, total_bytes: int, last_offset: int, segment_bytes: int, index_bytes: int, batches: int = 1
    ) -> bool:
        return (
            self.file.size + total_bytes <= min(segment_bytes, POSITION_MAX)
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and (len(self.offset_index) + batches) * OffsetIndex.ENTRY.size <= index_bytes
        )

    def seal(self) -> None:
        """Ends appends: adds the last entry of the time index and persists both indexes.

        May be repeated, and appends may follow, if the disk is full and the next segment cannot be created.
        """
        if self.max_timestamp >= 0:
            self._note_time()
        self.persist_indexes()

    def _note_time(self) -> None:
        # No checksum covers a base offset. A flipped bit can make it exceed the range of the index.
        relative_offset = self.max_timestamp_offset - self.base_offset
        if relative_offset <= RELATIVE_OFFSET_MAX:
            self.time_index.note(self.max_timestamp, relative_offset)

    def persist_indexes(self) -> None:
        self.offset_index.persist()
        self.time_index.persist()

    def truncate(self, position: int, next_offset: int) -> None:
        """Truncates the file and both indexes at a batch boundary, in one step."""
        self.truncations += 1
        self.file.truncate(position)
        self.next_offset = next_offset
        self.offset_index.truncate_to_position(position)
        self.time_index.truncate_to_offset(next_offset - self.base_offset)
        self.aborted.forget_from(next_offset)
        self.checked.cut(position)
        self.holes = [hole for hole in self.holes if hole.position < position]
        if self.max_timestamp_offset >= next_offset:  # otherwise it is kept, which saves a scan of the file
            self.refresh_max_timestamp()

    # Lookups

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Yields position and header of every batch from `position` on, skipping unreadable ranges.

        Raises CorruptLog.
        """
        size = self.file.size
        end = size if end is None else end
        while position + HEADER_BYTES <= end:
            position = self._past_hole(position)
            chunk = self.file.read(position, SCAN_BYTES)
            at = 0
            while at + HEADER_BYTES <= len(chunk):
                if self.holes and self._past_hole(position + at) != position + at:
                    break
                header = parse_header(chunk, at)
                total = header.length + LENGTH_OVERHEAD
                if total < HEADER_BYTES or header.magic != 2:
                    raise CorruptLog(f"{self.path}: no batch header at byte {position + at}")
                if position + at + total > end:
                    if end == size:
                        raise CorruptLog(f"{self.path}: half a batch at byte {position + at}")
                    return
                yield position + at, header
                at += total
            if not at and self._past_hole(position) == position:
                return
            position += at
        if position < end == size:
            raise CorruptLog(f"{self.path}: half a batch header at byte {position}")

    def _past_hole(self, position: int) -> int:
        for hole in self.holes:
            if hole.position <= position < hole.end:
                return hole.end
        return position

    def is_in_hole(self, position: int) -> bool:
        return self._past_hole(position) != position

    def before_hole(self, position: int, end: int) -> int:
        """Returns the end of the range, or the position of the first unreadable range in it."""
        return min((hole.position for hole in self.holes if position <= hole.position < end), default=end)

    def translate_offset(self, offset: int) -> int:
        """Returns the position of the batch that contains `offset`, or of the next one if compaction removed it."""
        damaged = self.hole_at(offset)
        if damaged is not None:
            return damaged.position
        position = self._start_for(max(offset - self.base_offset, 0))
        try:
            if self.holes:
                headers = self.headers(position)
                return next((at for at, header in headers if header.last_offset >= offset), self.file.size)
            return self._hop_to(offset, position)
        except CorruptLog:
            if self.holes:
                raise
            self.reindex()  # finds where the corruption begins and ends
            return self.translate_offset(offset) if self.holes else self._hop_to(offset, 0)

    def _hop_to(self, offset: int, position: int) -> int:
        """Scans headers from `position`, reading as few bytes as possible."""
        size = self.file.size
        while position < size:
            chunk = self.file.read(position, SCAN_BYTES)
            at, limit = 0, len(chunk) - HEADER_BYTES
            if limit < 0:
                raise CorruptLog(f"{self.path}: half a batch header at byte {position}")
            while at <= limit:
                base_offset, length = _OFFSET_AND_LENGTH.unpack_from(chunk, at)
                last_offset = base_offset + _LAST_OFFSET_DELTA.unpack_from(chunk, at + _LAST_OFFSET_DELTA_AT)[0]
                if last_offset >= offset:
                    if last_offset < self.next_offset and chunk[at + _MAGIC_AT] == FORMAT_VERSION:
                        return position + at
                    raise CorruptLog(f"{self.path}: no batch of this segment at byte {position + at}")
                if length < HEADER_BYTES - LENGTH_OVERHEAD:
                    raise CorruptLog(f"{self.path}: no batch header at byte {position + at}")
                at += length + LENGTH_OVERHEAD
            position += at
        if position > size:
            raise CorruptLog(
                f"{self.path}: the last batch header ends its batch at byte {position}, after the end of the file"
            )
        return size

    def last_boundary(self, start: int, limit: int) -> int:
        """Returns the last batch boundary at or before `limit`, but at least the end of the batch at `start`."""
        if limit >= self.file.size:
            return self.file.size
        entry = self.offset_index.last_before_position(limit)
        if entry is not None and entry[1] > start and not self._is_believed(entry):
            entry = self.offset_index.last_before_position(limit)
        position = max(entry[1], start) if entry else start
        boundary = position if position > start else None
        try:
            for at, header in self.headers(position):
                end = at + header.length + LENGTH_OVERHEAD
                if end > limit:
                    return end if boundary is None else boundary
                boundary = end
        except CorruptLog:
            if boundary is None:
                raise
        return start if boundary is None else boundary

    def _start_for(self, relative_offset: int) -> int:
        """Returns the position from which to scan for an offset."""
        entry = self.offset_index.at_or_before(relative_offset)
        if entry is not None and not self._is_believed(entry):
            entry = self.offset_index.at_or_before(relative_offset)
        return entry[1] if entry else 0

    def boundary_before(self, offset: int) -> int:
        """Returns a batch boundary at or before the offset's. Changes nothing, so that it may run in a thread."""
        entry = self.offset_index.at_or_before(offset - self.base_offset) if offset > self.base_offset else None
        if entry is None or (self.offset_index.was_loaded and not segment_verifier.is_offset_entry_valid(self, entry)):
            return 0
        return entry[1]

    def start_for_time(self, timestamp: int) -> int:
        """Returns the position from which to scan for the first record with at least `timestamp`."""
        entry = self.time_index.at_or_before(timestamp - 1)
        if entry is not None and self.time_index.was_loaded and not segment_verifier.is_time_entry_valid(self, entry):
            self.reindex()
            entry = self.time_index.at_or_before(timestamp - 1)
        return self._start_for(entry[1]) if entry else 0

    def _is_believed(self, entry: tuple[int, int]) -> bool:
        """Returns whether the entry is valid.

        False after the indexes were rebuilt: the caller looks up the entry again.
        """
        if not self.offset_index.was_loaded or segment_verifier.is_offset_entry_valid(self, entry):
            return True
        self.reindex()
        return False

    def reindex(self) -> None:
        """Rebuilds both indexes from the batches and records corrupt ranges.

        Raises IndexRebuilding if that would block the event loop of a broker for long: a thread does it.
        """
        if self.rebuilder is not None and self.size > REINDEX_AT_ONCE_BYTES:
            self.rebuilder.request(self)
        log.warning("%s: an index does not match its segment; rebuilding it", self.path)
        end = self.next_offset
        segment_verifier.check_segment(self, SegmentBounds(end, end, may_be_cut=False))
        self.next_offset = end

    def adopt_indexes(self, new: "LogSegment", holes: list[CorruptRange], *, has_grown: bool) -> None:
        """Adopts the result of a rebuild; `has_grown`: batches have been appended since it began."""
        self.offset_index, self.time_index, self.checked = new.offset_index, new.time_index, new.checked
        self.holes = sorted(holes)
        self.first_timestamp, self.first_epoch, self.last_epoch = new.first_timestamp, new.first_epoch, new.last_epoch
        if not has_grown:
            self._bytes_since_index_entry = new._bytes_since_index_entry
        if self.max_timestamp_offset < new.next_offset or new.max_timestamp >= self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = new.max_timestamp, new.max_timestamp_offset
        self.persist_indexes()

    def next_offset_at(self, boundary: int) -> int:
        """Returns the offset after the batch before this boundary; if that is unknown, the end of the segment.

        Does not use the batch after the boundary, which may be corrupt.
        """
        if boundary >= self.file.size:
            return self.next_offset
        place = segment_verifier.place_at(self, boundary)
        return self.next_offset if place.offset == UNKNOWN else place.offset

    # Verification

    def check(self, start: int, end: int) -> int:
        """Verifies batches from the boundary `start` until past `end` or an invalid one.

        Returns the end of the valid ones.

        Bytes that this process has appended or recovered are verified already. Older ones are read and verified
        before they are read for the first time, so that a bit that flipped on disk is never served.
        """
        good, damage = segment_verifier.check_range(self, start, end)
        if damage is not None and damage.base_offset == UNKNOWN:
            self.reindex()
            return start
        if damage is not None:
            segment_verifier.say_damaged(self, damage)
            self.note_hole(damage)
        if good > start:
            self.checked.add(start, good)
        return good

    def check_again(self, position: int, end: int) -> None:
        """Verifies the batches right before `position` now, and those up to `end` when they are read next.

        `position` is the result of a lookup. The lookup may have skipped a batch whose offset has changed.
        """
        entry = self.offset_index.last_before_position(position - 1)
        start = entry[1] if entry else 0
        self.checked.forget(start, end)
        if start < position:
            self.check(start, position)

    def inspect(self, start: int, bytes_max: int) -> tuple[int, CorruptRange | None]:
        """Verifies about `bytes_max` bytes from the boundary `start`.

        Returns where to continue, and the corrupt range found.

        Changes nothing, so that it may run in a thread next to the event loop; for an inactive segment only.
        """
        position, damage = segment_verifier.check_range(self, start, start + bytes_max)
        return position if damage is None else damage.end, damage

    def note_hole(self, damage: CorruptRange) -> None:
        if all(hole.position != damage.position for hole in self.holes):
            self.holes.append(damage)
            if self._has_max_timestamp(damage):
                with suppress(CorruptLog):
                    self.refresh_max_timestamp()

    def _has_max_timestamp(self, damage: CorruptRange) -> bool:
        """Returns whether the maximum timestamp may be that of the corrupt batch.

        If not, no header has to be read again.

        The offset in the header of the batch may be what is corrupt.
        """
        if damage.base_offset <= self.max_timestamp_offset < damage.next_offset:
            return True
        header = segment_verifier.header_at(self.file, damage.position)
        return header is not None and header.last_offset == self.max_timestamp_offset

    def hole_at(self, offset: int) -> CorruptRange | None:
        for hole in self.holes:
            if hole.base_offset <= offset < hole.next_offset:
                return hole
        return None

    # Opening

    def begin_anew(self) -> None:
        """Resets what is recorded about the batches, before a scan of all of them."""
        self.offset_index.clear()
        self.time_index.clear()
        self._bytes_since_index_entry = 0
        self.next_offset = self.base_offset
        self.first_timestamp = self.max_timestamp = -1
        self.first_epoch = self.last_epoch = UNKNOWN
        self.max_timestamp_offset = self.base_offset
        self.checked.clear()
        self.holes = []

    def index_verified_batch(self, position: int, header: BatchHeader) -> None:
        """Adds a valid batch that a scan has found at `position`."""
        if self.first_timestamp < 0:
            self.first_timestamp = header.max_timestamp
        if self.first_epoch == UNKNOWN:
            self.first_epoch = header.leader_epoch
        self.last_epoch = header.leader_epoch
        self.index_batch(position, header)
        self.checked.add(position, position + header.total_bytes)

    def refresh_max_timestamp(self) -> None:
        """Sets the maximum timestamp from the time index and the batches after its last entry."""
        self.max_timestamp, self.max_timestamp_offset = -1, self.base_offset
        position = 0
        last = self.time_index.last
        if last is not None:
            self.max_timestamp, self.max_timestamp_offset = last[0], last[1] + self.base_offset
            position = self.offset_index.position_at_or_before(last[1])
        self.note_times(self.headers(position))

    def note_times(self, headers: Iterable[tuple[int, BatchHeader]]) -> None:
        for _, header in headers:
            if header.max_timestamp > self.max_timestamp and header.record_count:
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset

    def close(self) -> None:
        self.aborted.close()
        self.file.close()
