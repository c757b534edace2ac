"""Appends batches to a log: coalesced appends of a leader, verified batches of a follower.

A coalesced append writes several data batches of one leader epoch with one system call. It applies only if the active
segment takes all of them without being rolled. In every other case the caller appends the batches one by one.

A follower appends the leader's batches unchanged, at the leader's offsets. Compaction may have left gaps between
them. The caller has verified their checksums.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from headrace.model.errors import OffsetOutOfRange
from headrace.records.batch import LENGTH_OVERHEAD, TRANSACTIONAL_FLAG, BatchHeader, patch_offset_and_epoch
from headrace.storage.io.file_system import Bytes
from headrace.storage.log import Log
from headrace.storage.producer.producer_state_entry import BATCHES_REMEMBERED, SEQUENCE_MASK
from headrace.storage.segment.log_segment import LogSegment


def append_batches_as_leader(
    log: Log, batches: Sequence[memoryview], headers: Sequence[BatchHeader], leader_epoch: int, now_ms: int
) -> list[BatchHeader] | None:
    """Appends validated batches of one client with one write. Returns their headers with offsets.

    Returns None, without a side effect, if the batches cannot be coalesced.
    """
    if not _follow_each_other(log, headers):
        return None
    placed, offset = [], log.log_end_offset
    for header in headers:
        placed.append(header.placed(offset, leader_epoch))
        offset += header.last_offset_delta + 1
    if not takes_as_one(log, placed, sum(map(len, batches)), now_ms):
        return None
    for batch, header in zip(batches, placed, strict=True):
        patch_offset_and_epoch(batch, header.base_offset, leader_epoch)
    append_as_one(log, b"".join(batches), placed)
    return placed


def _follow_each_other(log: Log, headers: Sequence[BatchHeader]) -> bool:
    """Returns whether one producer-state check covers all: no producer ids, or one producer's consecutive sequences."""
    first = headers[0]
    if first.producer_id < 0:
        return all(header.producer_id < 0 for header in headers)
    return log.producers.check(first) is None and all(
        header.producer_id == first.producer_id
        and header.producer_epoch == first.producer_epoch
        and header.base_sequence == (before.last_sequence + 1) & SEQUENCE_MASK
        for before, header in pairwise(headers)
    )


def takes_as_one(log: Log, headers: Sequence[BatchHeader], total_bytes: int, now_ms: int) -> bool:
    """Returns whether the non-empty active segment takes all of them without being rolled."""
    active, config, last = log.active, log.config, headers[-1].last_offset
    return (
        len(headers) > 1
        and active.file.size > 0
        and headers[0].base_offset >= log.log_end_offset
        and headers[0].leader_epoch <= log.epochs.latest
        and active.has_room_for(total_bytes, last, config.segment_bytes, config.segment_index_bytes, len(headers))
        and not log.is_old_enough_to_roll(active, max([header.max_timestamp for header in headers]), now_ms)
    )


def append_as_one(log: Log, batches: Bytes, headers: Sequence[BatchHeader]) -> None:
    """Writes all of them with one system call."""
    segment = log.active
    segment.append_all(batches, headers)
    for header in _worth_remembering(headers):
        log.producers.applied(header)
    log.grown_to(segment.next_offset, segment)


def _worth_remembering(headers: Sequence[BatchHeader]) -> Iterable[BatchHeader]:
    """Returns the batches that change the producer states: without transactions, only the last few of each producer."""
    counted: dict[int, int] = {}
    told: list[BatchHeader] = []
    for header in reversed(headers):
        producer_id = header.producer_id
        if producer_id >= 0:
            count = counted.get(producer_id, 0)
            if count < BATCHES_REMEMBERED or header.attributes & TRANSACTIONAL_FLAG:
                counted[producer_id] = count + 1
                told.append(header)
    return reversed(told)


def append_batches_as_follower(log: Log, batches: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
    """Appends data batches of one leader epoch, with a single write where one segment takes all of them.

    A single write replicates small batches three times as fast as one write per batch.
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
    """Appends one replicated data or control batch."""
    if header.base_offset < log.log_end_offset:
        raise OffsetOutOfRange(
            f"{log.directory} ends at {log.log_end_offset}: cannot append a batch from {header.base_offset} on"
        )
    segment = log.segment_for(header, now_ms)
    if header.leader_epoch > log.epochs.latest:
        # The epoch starts at the end of this log: if the leader has compacted the first batches of the epoch, its first
        # offset is unknown. A replica with unreplicated records of the preceding epoch must not keep them.
        log.begin_epoch(header.leader_epoch, log.log_end_offset)
    if header.is_control:
        _append_control(log, segment, batch, header)
    else:
        segment.append(batch, header)
        if header.producer_id >= 0:
            log.producers.applied(header)
    log.appended(segment, header)


def _append_control(log: Log, segment: LogSegment, batch: memoryview, header: BatchHeader) -> None:
    from headrace.records.control import read_marker

    marker = read_marker(batch, header)
    if marker is not None:
        log.write_marker(segment, batch, header, marker)
    else:
        segment.append(batch, header)
        log.producers.applied_emptied_marker(header)
