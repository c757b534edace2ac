"""Reads a log: finds the file and the byte range of requested offsets."""

from bisect import bisect_right
from typing import TYPE_CHECKING

from headrace.model.errors import CorruptLog, OffsetOutOfRange
from headrace.storage.log_types import FileRecords
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from headrace.storage.log import Log

# A read checks at most this many bytes and returns what it has checked. Small batches cost most: 4 MiB of batches of
# 110 bytes took 0.7 s on a loaded machine. Checking all that a fetch may return could expire the session of a broker.
CHECK_BYTES_MAX = 1024 * 1024


def read(log: "Log", offset: int, bytes_max: int, limit: int) -> FileRecords | None:
    """Returns whole batches from the one that holds `offset`, below the offset `limit`; at least one batch.

    Returns None if there is none below `limit`. Raises OffsetOutOfRange.
    """
    if offset < log.log_start_offset or offset > log.log_end_offset:
        raise OffsetOutOfRange(
            f"offset {offset} is outside {log.log_start_offset}..{log.log_end_offset} of {log.directory}"
        )
    if offset >= limit:
        return None
    number, position = _place_of(log, offset)
    while number < len(log.segments):
        segment = log.segments[number]
        end = _end_below(log, segment, limit)
        if position < end:
            return _slice(segment, position, end, offset, bytes_max)
        number, position = number + 1, 0
    return None


def read_again(log: "Log", offset: int, bytes_max: int, found: FileRecords | None) -> FileRecords | None:
    """Reads up to the log end and checks the batches again, after a reader has rejected `found`.

    Offset, leader epoch and length of a batch are outside of its checksum. Bits of them that have changed since the
    append are detected by a comparison with the neighboring batches.
    """
    first = max(bisect_right(log.segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    for segment in log.segments[first:]:
        if found is not None and segment.file is found.file:
            segment.check_again(found.position, found.position + found.length)
            break
        segment.check_again(segment.size, segment.size)
    return read(log, offset, bytes_max, log.log_end_offset)


def _place_of(log: "Log", offset: int) -> tuple[int, int]:
    """Returns the number of the segment and the position in it from which to read `offset`."""
    recent = log.tail_positions.get(offset)
    if recent is not None and recent[0] is log.segments[-1] and not recent[0].is_in_hole(recent[1]):
        return len(log.segments) - 1, recent[1]
    for hole in log.holes:
        if hole.base_offset <= offset < hole.next_offset:
            raise CorruptLog(f"{log.directory}: offset {offset} is lost: {hole.reason}")
    number = max(bisect_right(log.segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    segment = log.segments[number]
    position = segment.translate_offset(offset)  # before the checks below: the search may detect the corruption
    damaged = segment.hole_at(offset)
    if damaged is not None:
        raise CorruptLog(f"{segment.path}: offset {offset} cannot be read: {damaged.reason}")
    return number, position


def _end_below(log: "Log", segment: LogSegment, limit: int) -> int:
    if limit >= segment.next_offset:
        return segment.file.size
    recent = log.tail_positions.get(limit)
    if recent is not None and recent[0] is segment:
        return recent[1]
    return segment.translate_offset(limit) if limit > segment.base_offset else 0


def _slice(segment: LogSegment, position: int, end: int, offset: int, bytes_max: int) -> FileRecords:
    if end - position > bytes_max:
        end = segment.last_boundary(position, position + bytes_max)
    if segment.holes:
        end = segment.before_hole(position, end)
    if segment.checked.cover(position, end):
        return FileRecords(segment.file, position, end - position)
    # The ranges that are checked end at batch boundaries.
    cold = segment.checked.end_from(position)
    good = segment.check(cold, min(end, cold + CHECK_BYTES_MAX))
    if good <= position:
        raise CorruptLog(f"{segment.path}: offset {offset} cannot be read: its batch is corrupt")
    return FileRecords(segment.file, position, min(end, good) - position, good - cold)


def aborted_transactions(log: "Log", offset: int, records: FileRecords) -> list[AbortedTxn]:
    """Returns the aborted transactions whose records a `read_committed` consumer of the slice must skip."""
    if not log.has_aborted:
        return []
    segment = next(one for one in log.segments if one.file is records.file)
    upper = segment.next_offset_at(records.position + records.length)
    found: list[AbortedTxn] = []
    for later in log.segments[log.segments.index(segment) :]:
        aborted, is_complete = later.aborted.between(offset, upper)
        found += aborted
        if is_complete:
            break
    return found
