"""Batches that a follower has from its leader: appended as they are, at the leader's offsets.

There may be gaps between them, from compaction. Their checksums have been checked.
"""

from collections.abc import Iterable, Sequence

from headrace.model.errors import OffsetOutOfRange
from headrace.records.batch import LENGTH_OVERHEAD, TRANSACTIONAL_FLAG, BatchHeader
from headrace.storage.log import Log
from headrace.storage.producer_entry import BATCHES_REMEMBERED


def append_copies(log: Log, batches: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
    """Data batches of one leader epoch, one behind the other: a single write, where one segment takes all of them.

    Small batches are copied three times as fast as one by one.
    """
    if _takes_as_one(log, headers, len(batches), now_ms):
        segment = log.active
        segment.append_all(batches, headers)
        for header in _worth_remembering(headers):
            log.producers.applied(header)
        log.grown_to(segment.next_offset, segment)
        return
    position = 0
    for header in headers:
        end = position + header.length + LENGTH_OVERHEAD
        append_copy(log, batches[position:end], header, now_ms)
        position = end


def _takes_as_one(log: Log, headers: Sequence[BatchHeader], total_bytes: int, now_ms: int) -> bool:
    """Whether the active segment would take them one after the other; it has one already that says how old it is."""
    active, config, last = log.active, log.config, headers[-1].last_offset
    return (
        len(headers) > 1
        and active.file.size > 0
        and headers[0].base_offset >= log.log_end_offset
        and headers[0].leader_epoch <= log.epochs.latest
        and active.has_room_for(total_bytes, last, config.segment_bytes, config.segment_index_bytes, len(headers))
        and not log.is_old_enough_to_roll(active, max([header.max_timestamp for header in headers]), now_ms)
    )


def _worth_remembering(headers: Sequence[BatchHeader]) -> Iterable[BatchHeader]:
    """What producers' states are to be told: of a producer without transactions the last few batches count alone."""
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


def append_copy(log: Log, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
    """One batch, of whatever kind."""
    if header.base_offset < log.log_end_offset:
        raise OffsetOutOfRange(
            f"{log.directory} ends at {log.log_end_offset}: no place for a batch from {header.base_offset} on"
        )
    segment = log.segment_for(header, now_ms)
    if header.leader_epoch > log.epochs.latest:
        log.epochs.assign(header.leader_epoch, header.base_offset)
    segment.append(batch, header)
    if not header.is_control:
        log.appended(segment, header, None)
        return
    from headrace.records.control import read_marker

    marker = read_marker(batch, header)
    if marker is not None:
        log.appended(segment, header, marker)
        return
    log.producers.applied_emptied_marker(header)
    log.appended(segment, header._replace(producer_id=-1), None)
