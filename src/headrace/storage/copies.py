"""Batches that a follower has from its leader: appended as they are, at the leader's offsets.

There may be gaps between them, from compaction. Their checksums have been checked.
"""

from collections.abc import Sequence

from headrace.model.errors import OffsetOutOfRange
from headrace.records.batch import LENGTH_OVERHEAD, BatchHeader
from headrace.storage.log import Log
from headrace.storage.runs import append_as_one, takes_as_one
from headrace.storage.segment import Segment


def append_copies(log: Log, batches: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
    """Data batches of one leader epoch, one behind the other: a single write, where one segment takes all of them.

    Small batches are copied three times as fast as one by one.
    """
    if takes_as_one(log, headers, len(batches), now_ms):
        append_as_one(log, batches, headers)
        return
    position = 0
    for header in headers:
        end = position + header.length + LENGTH_OVERHEAD
        append_copy(log, batches[position:end], header, now_ms)
        position = end


def append_copy(log: Log, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
    """One batch, of whatever kind."""
    if header.base_offset < log.log_end_offset:
        raise OffsetOutOfRange(
            f"{log.directory} ends at {log.log_end_offset}: cannot append a batch from {header.base_offset} on"
        )
    segment = log.segment_for(header, now_ms)
    if header.leader_epoch > log.epochs.latest:
        # From the end of this log: where the leader has compacted the first batches of the epoch, its first offset is
        # not known. A replica with unreplicated records of the epoch before must not keep them.
        log.begin_epoch(header.leader_epoch, log.log_end_offset)
    if header.is_control:
        _append_control(log, segment, batch, header)
    else:
        segment.append(batch, header)
        if header.producer_id >= 0:
            log.producers.applied(header)
    log.appended(segment, header)


def _append_control(log: Log, segment: Segment, batch: memoryview, header: BatchHeader) -> None:
    from headrace.records.control import read_marker

    marker = read_marker(batch, header)
    if marker is not None:
        log.write_marker(segment, batch, header, marker)
    else:
        segment.append(batch, header)
        log.producers.applied_emptied_marker(header)
