"""Cutting a log that turned out to differ from its leader's, and starting one over at another offset.

The caller has made sure before that no checkpoint on disk remembers more than will be left: recovery takes what is
missing below the recovery point for damage.
"""

from headrace.storage.files import NewName
from headrace.storage.log import Log
from headrace.storage.producer_state import ProducerStates
from headrace.storage.recovery import rebuild_producers
from headrace.storage.segment import Segment
from headrace.storage.segment_check import header_at
from headrace.storage.segment_files import remove_segment_files


def truncate_log(log: Log, end_offset: int, now_ms: int) -> None:
    """Forget everything from `end_offset` on; a batch that holds it goes as a whole."""
    if end_offset >= log.log_end_offset:
        return
    if end_offset <= log.log_start_offset:
        start_log_anew(log, end_offset, now_ms)
        return
    segments = log.segments
    removed = [segments.pop() for _ in range(sum(one.base_offset >= end_offset for one in segments[1:]))]
    for segment in removed:
        remove_segment_files(log.files, segment)
    if removed:
        log.files.sync_dir(log.directory)  # else one of them could come back beside its successor
    end = _cut(log.active, end_offset)
    log.epochs.truncate_from_end(end)
    _settle(log, end, rebuild_producers(log.files, log.directory, segments))
    # Snapshots of what was cut are gone. None may come back beside other records: before those count, that is on disk.
    log.sync_first([NewName(log.files, log.directory)])


def _cut(segment: Segment, end_offset: int) -> int:
    if segment.next_offset <= end_offset:
        return segment.next_offset
    hole = segment.hole_at(end_offset)
    if hole is not None:  # its header may say anything
        segment.truncate(hole.position, hole.base_offset)
        return hole.base_offset
    position = segment.position_of(end_offset) if end_offset > segment.base_offset else 0
    header = header_at(segment.file, position)
    end = end_offset if header is None else min(end_offset, header.base_offset)
    segment.truncate(position, end)
    return end


def start_log_anew(log: Log, offset: int, now_ms: int) -> None:
    """Nothing of what was there counts any more: an empty log that begins at `offset`."""
    while log.segments:
        remove_segment_files(log.files, log.segments.pop())
    fresh = Segment(
        log.files,
        log.directory,
        offset,
        index_interval_bytes=log.config.index_interval_bytes,
        create=True,
        now_ms=now_ms,
    )
    fresh.epochs = log.epochs
    log.segments.append(fresh)
    log.files.sync_dir(log.directory)
    log.log_start_offset = offset
    log.epochs.truncate_from_end(0)
    log.holes = []
    _settle(log, offset, ProducerStates())


def _settle(log: Log, end: int, producers: ProducerStates) -> None:
    log.holes = [hole for hole in log.holes if hole.next_offset <= end]
    log.producers = producers
    log.ends_at(end)
