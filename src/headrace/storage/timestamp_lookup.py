"""Finds records by timestamp: with the time indexes, then record by record in one batch.

A lookup is a task (`storage/io/stepwise.py`). It reads indexes and headers on the event loop, in short steps. It
decompresses and scans records off the loop, from bytes that were read before: one batch can hold a million records.
The log may change between two steps; a lookup whose batch is no longer in the log starts again.
"""

from bisect import bisect_right
from functools import partial

from headrace.model.errors import CorruptLog, LookupInterrupted
from headrace.records.batch import HEADER_BYTES, BatchHeader, parse_header
from headrace.records.batch_queries import first_at_or_after, max_timestamp_record
from headrace.storage.io.stepwise import Task, off_loop
from headrace.storage.log import Log
from headrace.storage.log_types import TimestampAndOffset
from headrace.storage.segment.index_rebuild import IndexRebuilding
from headrace.storage.segment.log_segment import LogSegment

# Per step: a few milliseconds of work. With the index, a lookup needs far fewer unless timestamps descend.
HEADERS_PER_STEP = 500
BYTES_PER_STEP = 1024 * 1024  # that are read and checked because this process has not read them before
# Retention, compaction and truncation interrupt a lookup. Each is rare, so that many interruptions in a row are an
# error.
ATTEMPTS_MAX = 10


class _LogChanged(Exception):
    """The batch that a lookup has reached is no longer in the log."""


def offset_at_or_after(log: Log, timestamp: int) -> Task[TimestampAndOffset | None]:
    """Returns the first record with at least `timestamp`. Raises LookupInterrupted if the log keeps changing."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return (yield from _first_record(log, timestamp))
        except _LogChanged:
            continue
    raise LookupInterrupted(f"{log.directory}: segments were removed or replaced {ATTEMPTS_MAX} times during a look-up")


def offset_of_max_timestamp(log: Log) -> Task[TimestampAndOffset | None]:
    """Returns the first record with the highest timestamp. Raises LookupInterrupted if the log keeps changing."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return (yield from _youngest_record(log))
        except _LogChanged:
            continue
    raise LookupInterrupted(f"{log.directory}: segments were removed or replaced {ATTEMPTS_MAX} times during a look-up")


def _first_record(log: Log, timestamp: int) -> Task[TimestampAndOffset | None]:
    for segment in [*log.segments]:
        if segment not in log.segments:
            raise _LogChanged
        if segment.max_timestamp < timestamp or segment.next_offset <= log.log_start_offset:
            continue
        try:
            found = yield from _first_in(log, segment, timestamp)
        except CorruptLog:
            segment.reindex()  # finds where the corruption begins and ends
            found = yield from _first_in(log, segment, timestamp)
        if found is not None:
            return found
    return None


def _first_in(log: Log, segment: LogSegment, timestamp: int) -> Task[TimestampAndOffset | None]:
    position = segment.start_for_time(timestamp)
    while True:
        step = _walk(log, segment, position, timestamp)
        if step is None:
            return None
        at, header, may_have_it = step
        found = None
        if may_have_it:
            batch = segment.file.read(at, header.total_bytes)
            start = log.log_start_offset
            found = yield from off_loop(partial(first_at_or_after, batch, header, timestamp, from_offset=start))
        else:
            yield None
        _check_unchanged(log, segment, at, header)
        if found is not None and found[0] < log.log_start_offset:
            raise _LogChanged
        if found is not None:
            return _found(log, *found)
        position = at + header.total_bytes


def _walk(log: Log, segment: LogSegment, position: int, timestamp: int) -> tuple[int, BatchHeader, bool] | None:
    """Returns the next batch that may have the record, or the last one of this step; None at the end of the segment."""
    for number, (at, header) in enumerate(segment.headers(position), start=1):
        # An invalid batch is recorded as unreadable here. A read from this position reports it.
        is_old = header.max_timestamp < timestamp or header.last_offset < log.log_start_offset
        if _is_good(segment, at, header) and not is_old:
            return at, header, True
        if number == HEADERS_PER_STEP or at - position >= BYTES_PER_STEP:
            return at, header, False
    return None


def _youngest_record(log: Log) -> Task[TimestampAndOffset | None]:
    youngest = max(log.segments, key=lambda segment: segment.max_timestamp, default=None)
    if youngest is None or youngest.max_timestamp < 0:
        return None
    position = youngest.translate_offset(youngest.max_timestamp_offset)
    for at, header in youngest.headers(position):
        if not _is_good(youngest, at, header) or youngest.hole_at(youngest.max_timestamp_offset) is not None:
            break
        batch = youngest.file.read(at, header.total_bytes)
        found = yield from off_loop(partial(max_timestamp_record, batch, header))
        _check_unchanged(log, youngest, at, header)
        return _found(log, *found) if found is not None else None
    raise CorruptLog(f"{youngest.path}: the batch with the highest timestamp is corrupt")


def _check_unchanged(log: Log, segment: LogSegment, position: int, header: BatchHeader) -> None:
    """Raises _LogChanged unless the batch is at `position`.

    Its header has the checksum of its records, so it identifies it.
    """
    if segment in log.segments:
        data = segment.file.read(position, HEADER_BYTES)
        if len(data) == HEADER_BYTES and parse_header(data) == header:
            return
    raise _LogChanged


def _found(log: Log, offset: int, timestamp: int) -> TimestampAndOffset:
    """Takes the leader epoch from the epoch cache: the checksum of a batch does not cover the epoch in its header."""
    return TimestampAndOffset(offset, timestamp, log.epochs.epoch_of(offset))


def _is_good(segment: LogSegment, position: int, header: BatchHeader) -> bool:
    end = position + header.total_bytes
    return segment.checked.cover(position, end) or segment.check(position, end) >= end


def time_of_batch_at(log: Log, offset: int) -> int | None:
    """Returns the first timestamp of the batch that contains `offset`; None if it cannot be determined.

    Reads one header and verifies no checksum: sufficient for an approximate age.
    """
    number = bisect_right(log.segments, offset, key=lambda segment: segment.base_offset) - 1
    if number < 0 or offset < log.log_start_offset:
        return None
    segment = log.segments[number]
    try:
        head = segment.file.read(segment.translate_offset(offset), HEADER_BYTES)
    except (CorruptLog, IndexRebuilding):
        return None
    if len(head) < HEADER_BYTES:
        return None
    header = parse_header(head)
    timestamp = header.max_timestamp if header.has_delete_horizon else header.base_timestamp
    return timestamp if timestamp >= 0 else None
