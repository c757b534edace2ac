"""Is this batch the one that was written here? And if not: from where to where is it not?

The checksum answers for everything behind it. Base offset and leader epoch stand outside of it (an append writes them
in place), so they are held against others: offsets ascend and do not overlap, and a leader epoch is that of a neighbour
or the one that the epochs' file has there. A flipped bit in one of them is damage like any other: the records would be
served under another offset.

Looks at one segment; what becomes of damage is decided by who asks. The live log asks before it serves bytes that this
process has not seen yet, recovery asks for all that may be torn, the scrubber for what nobody has read in a while.
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

UNKNOWN = -1  # an offset or epoch that nobody can tell
FORMAT_VERSION = 2
_OFFSET = Struct(">q")
_PREFIX_BYTES = 4  # of an offset: the same for all batches near each other
READ_AHEAD_BYTES = 64 * 1024  # many small batches in one read, and no more than a large one would cost anyway
SEARCH_BYTES = 1024 * 1024  # one read while looking for the next batch behind damage
RECORDS_MAX = 2**20  # in one batch: bounds what a damaged header can make us skip


class CorruptRange(NamedTuple):
    """Bytes that are not what was written there: never served, never cut away."""

    position: int
    end: int
    base_offset: int
    next_offset: int
    reason: str


class ExpectedBatch(NamedTuple):
    """What is known about the batch at a position before looking at it."""

    position: int
    offset: int  # that it should begin with
    epoch: int  # of the batch before it


class SegmentBounds(NamedTuple):
    """What is known about a segment before looking into it."""

    end_offset: int = UNKNOWN
    recovery_point: int = UNKNOWN  # everything below has been on disk once
    may_be_cut: bool = True  # at the first bad batch past the recovery point
    may_end_in_gap: bool = True  # before its last batch, as compaction leaves one
    epochs_are_confirmed: bool = False  # the log's epochs have been held against its batches
    tears_last_write_only: bool = False  # whether only the last batch of the log can be half a write


class ReadAhead:
    """The bytes of a file that is read from front to back, some of them before they are asked for."""

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
    """None where no header can be."""
    data = file.read(position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return None
    header = parse_header(data)
    return header if header.magic == FORMAT_VERSION and header.total_bytes >= HEADER_BYTES else None


def examine(segment: "LogSegment", bytes_: ReadAhead, place: ExpectedBatch, bounds: SegmentBounds) -> BatchHeader:
    """The header of the batch at the place; raises CorruptLog with what is wrong with it."""
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
    """A gap before a batch is compaction's, unless the next batch knows better."""
    if header.base_offset < place.offset or place.offset == UNKNOWN:
        return place.offset == UNKNOWN
    if bounds.end_offset != UNKNOWN and header.next_offset > bounds.end_offset:
        return False
    following = _following(segment, place, header)
    if following is not None:
        return following.base_offset >= header.next_offset
    return bounds.end_offset != UNKNOWN or bounds.may_end_in_gap


def _fits_epoch(segment: "LogSegment", place: ExpectedBatch, header: BatchHeader, bounds: SegmentBounds) -> bool:
    """Another epoch than the batch before has to be confirmed: by the epochs' file, or by the next batch."""
    epoch = header.leader_epoch
    known = segment.epochs.epoch_of(header.base_offset) if segment.epochs is not None else UNKNOWN
    following = _following(segment, place, header)
    if epoch == known or (following is not None and following.leader_epoch == epoch):
        return True
    if bounds.epochs_are_confirmed and known != UNKNOWN:
        return False
    if following is None:
        # The file may be what is wrong: rather a wrong epoch in the last batch than a batch that is not there.
        return epoch > place.epoch
    return known == UNKNOWN and place.epoch <= epoch <= following.leader_epoch


def hole_at(segment: "LogSegment", place: ExpectedBatch, reason: str, bounds: SegmentBounds) -> CorruptRange:
    """The damage that begins here, up to the next batch that is good, or to the end of the file."""
    checksums = RangeChecksums(segment.file, place.position)
    for position in _where_to_go_on(segment, place):
        header = _good_batch(segment, position, place.offset, bounds.end_offset, checksums)
        if header is not None:
            return CorruptRange(place.position, position, place.offset, header.base_offset, reason)
    # Offsets that were handed out, or may have been, are not handed out again.
    next_offset = max(bounds.end_offset, bounds.recovery_point, place.offset)
    if next_offset == place.offset and bounds.end_offset < place.offset:
        next_offset = min(max(_said_end(segment, place), place.offset + 1), place.offset + RECORDS_MAX)
    return CorruptRange(place.position, segment.size, place.offset, next_offset, reason)


def _said_end(segment: "LogSegment", place: ExpectedBatch) -> int:
    """Where the damaged batch says that it ends: by its own offset, or by the one that it should have."""
    damaged = header_at(segment.file, place.position)
    return place.offset if damaged is None else max(damaged.base_offset, place.offset) + damaged.last_offset_delta + 1


def _where_to_go_on(segment: "LogSegment", place: ExpectedBatch) -> Iterator[int]:
    """Behind the batch, if its length is not what is damaged; else wherever a batch might begin."""
    header = header_at(segment.file, place.position)
    if header is not None and place.position + header.total_bytes < segment.size:
        yield place.position + header.total_bytes
    import re

    # The first bytes of an offset near this one, and the format's version where it belongs. A segment spans less than
    # 2^32 offsets, so the first bytes of later ones are these or the next number.
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
    """The header of a valid batch whose offsets are between these two, if one begins at the position."""
    header = header_at(segment.file, position)
    if header is None or not after_offset <= header.base_offset < header.next_offset:
        return None
    end = position + header.total_bytes
    if end > segment.size or (end_offset != UNKNOWN and header.next_offset > end_offset):
        return None
    return header if checksums.of(position + CRC_START, end) == header.crc else None


def check_segment(segment: "LogSegment", bounds: SegmentBounds) -> bool:
    """Check every batch and index the good ones anew; False when the segment was cut, so nothing may follow it.

    Past the recovery point a bad batch is half a write, and the log ends before it; where only the last write can be
    torn, only if no valid batch is behind it. Any other is corrupt: kept, logged as an error, and not served.
    """
    segment.begin_anew()
    bytes_ = ReadAhead(segment.file)
    place = ExpectedBatch(0, segment.base_offset, UNKNOWN)
    while place.position < segment.size:
        try:
            header = examine(segment, bytes_, place, bounds)
        except CorruptLog as damage:
            if segment.next_offset == bounds.end_offset:
                # All that belongs here is here. Half a write that was cut before came back with a power cut.
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
    """Whether the bad batch is the end of the log, where a process was killed while it wrote."""
    if bounds.end_offset != UNKNOWN:
        return False  # the next segment was begun after this one was written
    if hole.end == segment.size:
        return True
    header = header_at(segment.file, hole.position)
    if header is None or header.base_offset != hole.base_offset:
        return False
    # What looks like a batch within half a batch is a record's value, unless it is the batch that has to follow.
    return hole.end < hole.position + header.total_bytes and hole.next_offset != header.next_offset


def _cut(segment: "LogSegment", position: int, reason: str) -> None:
    # Room that a crash has left is nothing to worry about.
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
    """Check batches from the boundary `start` until past `end` or a bad one; how far it is good, and the damage.

    Changes nothing, so that it may run in a thread beside the loop.
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
    """What the batches before it say about the boundary at `position`."""
    entry = segment.offset_index.last_before_position(position - 1)
    start, offset, epoch = (entry[1] if entry else 0), UNKNOWN, UNKNOWN
    if not start:
        offset = segment.base_offset
    try:
        for _, header in segment.headers(start, position):
            if not offset <= header.base_offset < header.next_offset <= segment.next_offset:
                return ExpectedBatch(
                    position, UNKNOWN, UNKNOWN
                )  # that one is damaged, and knows nothing about this one
            offset, epoch = header.next_offset, header.leader_epoch
    except CorruptLog:
        return ExpectedBatch(position, UNKNOWN, UNKNOWN)
    for hole in segment.holes:
        if hole.end == position:
            offset = hole.next_offset
    return ExpectedBatch(position, offset, epoch)


def is_offset_entry_valid(segment: "LogSegment", entry: tuple[int, int]) -> bool:
    """Whether an entry of `.index` names the last offset of the batch at its position."""
    if segment.is_in_hole(entry[1]):
        return True
    header = header_at(segment.file, entry[1])
    return header is not None and header.last_offset == segment.base_offset + entry[0]


def is_time_entry_valid(segment: "LogSegment", entry: tuple[int, int]) -> bool:
    """Whether an entry of `.timeindex` names the highest timestamp of the batch that holds its offset."""
    offset = segment.base_offset + entry[1]
    if segment.hole_at(offset) is not None:
        return True
    header = header_at(segment.file, segment.translate_offset(offset))
    return header is not None and header.base_offset <= offset and header.max_timestamp == entry[0]
