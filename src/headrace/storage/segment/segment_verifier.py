"""Verifies batches of one segment, and finds the end of a corrupt range.

The checksum covers everything after it. Base offset and leader epoch are outside of it, because an append writes
them in place. They are checked against the neighboring batches: offsets ascend and do not overlap, and a leader epoch
equals that of a neighbor or the one in the leader epoch cache. A flipped bit in one of them is corruption as well:
the records would be served under another offset.

The callers decide what to do with a corrupt range. The log verifies before it serves bytes that this process has not
read yet, recovery verifies what may be torn, and the scrubber what has not been read recently.
"""

import logging
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from headrace.model.errors import CorruptLog
from headrace.records.batch import CRC_START, HEADER_BYTES, BatchHeader, batch_crc, parse_header
from headrace.storage.io.file_system import File
from headrace.storage.io.preallocation import is_room
from headrace.storage.segment.file_names import OFFSET_MAX
from headrace.storage.segment.range_checksums import RangeChecksums

if TYPE_CHECKING:
    from headrace.storage.segment.log_segment import LogSegment

log = logging.getLogger(__name__)

UNKNOWN = -1  # an unknown offset or epoch
FORMAT_VERSION = 2
_OFFSET = Struct(">q")
_PREFIX_BYTES = 4  # high-order bytes of an offset: the same for all offsets near each other
READ_AHEAD_BYTES = 64 * 1024  # many small batches in one read, at no more cost than a large one
SEARCH_BYTES = 1024 * 1024  # one read while searching for the next batch after a corrupt one
RECORDS_MAX = 2**20  # in one batch: bounds what a corrupt header can make recovery skip


class CorruptRange(NamedTuple):
    """A byte range that fails verification: never served, never truncated."""

    position: int
    end: int
    base_offset: int
    next_offset: int
    reason: str


class ExpectedBatch(NamedTuple):
    """Expected properties of the batch at a position, before it is read."""

    position: int
    offset: int  # that the batch should begin with
    epoch: int  # of the batch before it


class SegmentBounds(NamedTuple):
    """Known bounds of a segment, before it is read."""

    end_offset: int = UNKNOWN
    recovery_point: int = UNKNOWN  # every record below was synced
    may_be_cut: bool = True  # whether to truncate at the first invalid batch past the recovery point
    may_end_in_gap: bool = True  # whether compaction may have left a gap before its last batch
    epochs_are_confirmed: bool = False  # whether the leader epochs have been checked against the log's batches
    tears_last_write_only: bool = False  # whether only the last batch of the log can be a partial write


class ReadAhead:
    """Sequential reader of a file that reads ahead."""

    __slots__ = ("_chunk", "_file", "_start")

    def __init__(self, file: File) -> None:
        self._file = file
        self._start, self._chunk = 0, memoryview(b"")

    def read(self, position: int, length: int) -> memoryview:
        at = position - self._start
        if at < 0 or at + length > len(self._chunk):
            self._start, at = position, 0
            self._chunk = memoryview(self._file.read(position, max(length, READ_AHEAD_BYTES)))
        return self._chunk[at : at + length]


def header_at(file: File | ReadAhead, position: int) -> BatchHeader | None:
    """Returns the header at `position`, or None if there cannot be one."""
    data = file.read(position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return None
    header = parse_header(data)
    return header if header.magic == FORMAT_VERSION and header.total_bytes >= HEADER_BYTES else None


def examine(segment: "LogSegment", bytes_: ReadAhead, place: ExpectedBatch, bounds: SegmentBounds) -> BatchHeader:
    """Returns the header of the expected batch; raises CorruptLog with the reason if it is invalid."""
    header = header_at(bytes_, place.position)
    if header is None:
        raise CorruptLog("there is no batch header")
    end = place.position + header.total_bytes
    if end > segment.size:
        raise CorruptLog("the file ends in the middle of a batch")
    if batch_crc(bytes_.read(place.position, header.total_bytes)) != header.crc:
        raise CorruptLog("the checksum is wrong")
    if header.base_offset != place.offset and not _fits_offset(segment, place, header, bounds):
        raise CorruptLog(f"offset {header.base_offset} stands where {place.offset} should")
    if header.leader_epoch != place.epoch and not _fits_epoch(segment, place, header, bounds):
        raise CorruptLog(f"leader epoch {header.leader_epoch} cannot be right")
    return header


def _following(segment: "LogSegment", place: ExpectedBatch, header: BatchHeader) -> BatchHeader | None:
    end = place.position + header.total_bytes
    return header_at(segment.file, end) if end < segment.size else None


def _fits_offset(segment: "LogSegment", place: ExpectedBatch, header: BatchHeader, bounds: SegmentBounds) -> bool:
    """A gap before a batch is attributed to compaction, unless the next batch contradicts."""
    if header.base_offset < place.offset or place.offset == UNKNOWN:
        return place.offset == UNKNOWN
    if bounds.end_offset != UNKNOWN and header.next_offset > bounds.end_offset:
        return False
    following = _following(segment, place, header)
    if following is not None:
        return following.base_offset >= header.next_offset
    return bounds.end_offset != UNKNOWN or bounds.may_end_in_gap


def _fits_epoch(segment: "LogSegment", place: ExpectedBatch, header: BatchHeader, bounds: SegmentBounds) -> bool:
    """Requires confirmation of an epoch change: by the leader epoch cache, or by the next batch."""
    epoch = header.leader_epoch
    known = segment.epochs.epoch_of(header.base_offset) if segment.epochs is not None else UNKNOWN
    following = _following(segment, place, header)
    if epoch == known or (following is not None and following.leader_epoch == epoch):
        return True
    if bounds.epochs_are_confirmed and known != UNKNOWN:
        return False
    if following is None:
        # The leader epoch cache may be wrong. A wrong epoch in the last batch is better than a missing batch.
        return epoch > place.epoch
    return known == UNKNOWN and place.epoch <= epoch <= following.leader_epoch


def hole_at(segment: "LogSegment", place: ExpectedBatch, reason: str, bounds: SegmentBounds) -> CorruptRange:
    """Returns the corrupt range that begins here, up to the next valid batch, or to the end of the file."""
    checksums = RangeChecksums(segment.file, place.position)
    for position in _where_to_go_on(segment, place):
        header = _good_batch(segment, position, place.offset, bounds.end_offset, checksums)
        if header is not None:
            return CorruptRange(place.position, position, place.offset, header.base_offset, reason)
    # Offsets that were assigned, or may have been, are not assigned again.
    next_offset = max(bounds.end_offset, bounds.recovery_point, place.offset)
    if next_offset == place.offset and bounds.end_offset < place.offset:
        next_offset = min(max(_said_end(segment, place), place.offset + 1), place.offset + RECORDS_MAX)
    return CorruptRange(place.position, segment.size, place.offset, next_offset, reason)


def _said_end(segment: "LogSegment", place: ExpectedBatch) -> int:
    """Returns where the corrupt batch ends by its header: from its own base offset, or from the expected one."""
    damaged = header_at(segment.file, place.position)
    return place.offset if damaged is None else max(damaged.base_offset, place.offset) + damaged.last_offset_delta + 1


def _where_to_go_on(segment: "LogSegment", place: ExpectedBatch) -> Iterator[int]:
    """Yields the end of the batch, in case its length is intact; then every position where a batch might begin."""
    header = header_at(segment.file, place.position)
    if header is not None and place.position + header.total_bytes < segment.size:
        yield place.position + header.total_bytes
    import re

    # The search pattern is the high-order bytes of an offset near this one, and the magic byte. A segment spans less
    # than 2^32 offsets, so that these bytes of later offsets are the same or the next number.
    prefix, following = (
        re.escape(_OFFSET.pack(min(offset, OFFSET_MAX))[:_PREFIX_BYTES])
        for offset in (max(place.offset, 0), max(place.offset, 0) + 2**32)
    )
    looks_like_a_batch = re.compile(b"(?=(?:%b|%b).{12}\\x02)" % (prefix, following), re.DOTALL)
    start = place.position + 1
    while start + HEADER_BYTES <= segment.size:
        data = segment.file.read(start, SEARCH_BYTES + HEADER_BYTES)
        yield from (start + match.start() for match in looks_like_a_batch.finditer(data))
        start += SEARCH_BYTES


def _good_batch(
    segment: "LogSegment", position: int, after_offset: int, end_offset: int, checksums: RangeChecksums
) -> BatchHeader | None:
    """Returns the header of a valid batch at `position` whose offsets are between these two; None if there is none."""
    header = header_at(segment.file, position)
    if header is None or not after_offset <= header.base_offset < header.next_offset:
        return None
    end = position + header.total_bytes
    if end > segment.size or (end_offset != UNKNOWN and header.next_offset > end_offset):
        return None
    return header if checksums.of(position + CRC_START, end) == header.crc else None


def check_segment(segment: "LogSegment", bounds: SegmentBounds) -> bool:
    """Verifies every batch and rebuilds the indexes; False if the segment was truncated, so that none may follow it.

    Past the recovery point an invalid batch is a partial write, and the log ends before it; if only the last write
    can be torn, only if no valid batch is after it. Any other is corrupt: kept, logged as an error, and not served.
    """
    segment.begin_anew()
    bytes_ = ReadAhead(segment.file)
    place = ExpectedBatch(0, segment.base_offset, UNKNOWN)
    while place.position < segment.size:
        try:
            header = examine(segment, bytes_, place, bounds)
        except CorruptLog as damage:
            if segment.next_offset == bounds.end_offset:
                # The segment is complete. A partial write that was truncated earlier has reappeared after a power loss.
                _cut(segment, place.position, str(damage))
                return True
            may_be_torn = bounds.may_be_cut and segment.next_offset >= bounds.recovery_point
            if may_be_torn and not bounds.tears_last_write_only:
                _cut(segment, place.position, str(damage))
                return False
            hole = hole_at(segment, place, str(damage), bounds)
            if may_be_torn and _is_last_write(segment, hole, bounds):
                _cut(segment, place.position, str(damage))
                return False
            segment.note_hole(hole)
            say_damaged(segment, hole)
            segment.next_offset = hole.next_offset
            place = ExpectedBatch(hole.end, hole.next_offset, place.epoch)
        else:
            segment.index_verified_batch(place.position, header)
            place = ExpectedBatch(place.position + header.total_bytes, header.next_offset, header.leader_epoch)
    segment.persist_indexes()
    return True


def _is_last_write(segment: "LogSegment", hole: CorruptRange, bounds: SegmentBounds) -> bool:
    """Returns whether the invalid batch is the end of the log, where the process crashed during a write."""
    if bounds.end_offset != UNKNOWN:
        return False  # the next segment was begun after this one was written
    if hole.end == segment.size:
        return True
    header = header_at(segment.file, hole.position)
    if header is None or header.base_offset != hole.base_offset:
        return False
    # A batch within a partial batch is part of a record value, unless it has the offset of the next batch.
    return hole.end < hole.position + header.total_bytes and hole.next_offset != header.next_offset


def _cut(segment: "LogSegment", position: int, reason: str) -> None:
    # A preallocated tail is expected after a crash, so it is logged at debug level.
    level, what = (logging.DEBUG, "room") if is_room(segment.file, position) else (logging.WARNING, reason)
    log.log(level, "%s: truncated %d bytes at byte %d: %s", segment.path, segment.size - position, position, what)
    segment.truncate(position, segment.next_offset)
    segment.persist_indexes()


def say_damaged(segment: "LogSegment", hole: CorruptRange) -> None:
    log.error(
        "%s: offsets %d to %d are corrupt (%s); they are kept and not served",
        segment.path,
        hole.base_offset,
        hole.next_offset - 1,
        hole.reason,
    )


def check_range(segment: "LogSegment", start: int, end: int) -> tuple[int, CorruptRange | None]:
    """Verifies batches from `start` until past `end` or an invalid one.

    Returns the end of the valid ones, and the corrupt range.

    Changes nothing, so that it may run in a thread next to the event loop.
    """
    place, bounds = place_at(segment, start), SegmentBounds(segment.next_offset, epochs_are_confirmed=True)
    bytes_, end = ReadAhead(segment.file), min(end, segment.size)
    while place.position < end:
        try:
            header = examine(segment, bytes_, place, bounds)
        except CorruptLog as damage:
            return place.position, hole_at(segment, place, str(damage), bounds)
        place = ExpectedBatch(place.position + header.total_bytes, header.next_offset, header.leader_epoch)
    return place.position, None


def place_at(segment: "LogSegment", position: int) -> ExpectedBatch:
    """Returns the expected batch at the boundary `position`, derived from the batches before it."""
    entry = segment.offset_index.last_before_position(position - 1)
    start, offset, epoch = (entry[1] if entry else 0), UNKNOWN, UNKNOWN
    if not start:
        offset = segment.base_offset
    try:
        for _, header in segment.headers(start, position):
            if not offset <= header.base_offset < header.next_offset <= segment.next_offset:
                return ExpectedBatch(
                    position, UNKNOWN, UNKNOWN
                )  # that batch is corrupt and implies nothing about the next one
            offset, epoch = header.next_offset, header.leader_epoch
    except CorruptLog:
        return ExpectedBatch(position, UNKNOWN, UNKNOWN)
    for hole in segment.holes:
        if hole.end == position:
            offset = hole.next_offset
    return ExpectedBatch(position, offset, epoch)


def is_offset_entry_valid(segment: "LogSegment", entry: tuple[int, int]) -> bool:
    """Returns whether an entry of `.index` names the last offset of the batch at its position."""
    if segment.is_in_hole(entry[1]):
        return True
    header = header_at(segment.file, entry[1])
    return header is not None and header.last_offset == segment.base_offset + entry[0]


def is_time_entry_valid(segment: "LogSegment", entry: tuple[int, int]) -> bool:
    """Returns whether an entry of `.timeindex` names the maximum timestamp of the batch that contains its offset."""
    offset = segment.base_offset + entry[1]
    if segment.hole_at(offset) is not None:
        return True
    header = header_at(segment.file, segment.translate_offset(offset))
    return header is not None and header.base_offset <= offset and header.max_timestamp == entry[0]
