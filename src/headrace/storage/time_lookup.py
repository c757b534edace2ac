"""Finding records of a log by their time: through the time indexes, then record by record in one batch."""

from bisect import bisect_right

from headrace.model.errors import CorruptLog
from headrace.records.batch import HEADER_BYTES, BatchHeader, parse_header
from headrace.records.lookup import first_at_or_after, max_timestamp_record
from headrace.storage.log import Log
from headrace.storage.log_values import FoundOffset
from headrace.storage.segment import Segment


def offset_at_or_after(log: Log, timestamp: int) -> FoundOffset | None:
    """The first record that is at least as young as `timestamp`."""
    for segment in log.segments:
        if segment.max_timestamp < timestamp or segment.next_offset <= log.log_start_offset:
            continue
        try:
            found = _first_in(log, segment, timestamp)
        except CorruptLog:
            segment.reindex()  # finds out where the damage begins and ends
            found = _first_in(log, segment, timestamp)
        if found is not None:
            return found
    return None


def _first_in(log: Log, segment: Segment, timestamp: int) -> FoundOffset | None:
    for at, header in segment.headers(segment.start_for_time(timestamp)):
        if not _is_good(segment, at, header):
            continue  # the damage is known now; whoever reads from here meets it
        if header.max_timestamp < timestamp or header.last_offset < log.log_start_offset:
            continue
        batch = segment.file.read(at, header.total_bytes)
        found = first_at_or_after(batch, header, timestamp, from_offset=log.log_start_offset)
        if found is not None:
            return _found(log, *found)
    return None


def offset_of_max_timestamp(log: Log) -> FoundOffset | None:
    """The record with the highest timestamp, the first of them if several share it."""
    youngest = max(log.segments, key=lambda segment: segment.max_timestamp)
    if youngest.max_timestamp < 0:
        return None
    position = youngest.position_of(youngest.max_timestamp_offset)
    for at, header in youngest.headers(position):
        if not _is_good(youngest, at, header) or youngest.hole_at(youngest.max_timestamp_offset) is not None:
            break
        found = max_timestamp_record(youngest.file.read(at, header.total_bytes), header)
        return _found(log, *found) if found is not None else None
    raise CorruptLog(f"{youngest.path}: the batch with the highest timestamp is damaged")


def _found(log: Log, offset: int, timestamp: int) -> FoundOffset:
    """With the epoch that the log's history gives it: the one in a batch's header has no checksum."""
    return FoundOffset(offset, timestamp, log.epochs.epoch_of(offset))


def _is_good(segment: Segment, position: int, header: BatchHeader) -> bool:
    end = position + header.total_bytes
    return segment.checked.cover(position, end) or segment.check(position, end) >= end


def time_of_batch_at(log: Log, offset: int) -> int | None:
    """The time of the first record of the batch that holds `offset`; None where it cannot be told.

    Reads one header and checks nothing: good enough for somebody who wants to know about how old it is.
    """
    number = bisect_right(log.segments, offset, key=lambda segment: segment.base_offset) - 1
    if number < 0 or offset < log.log_start_offset:
        return None
    segment = log.segments[number]
    try:
        head = segment.file.read(segment.position_of(offset), HEADER_BYTES)
    except CorruptLog:
        return None
    if len(head) < HEADER_BYTES:
        return None
    header = parse_header(head)
    timestamp = header.max_timestamp if header.has_delete_horizon else header.base_timestamp
    return timestamp if timestamp >= 0 else None
