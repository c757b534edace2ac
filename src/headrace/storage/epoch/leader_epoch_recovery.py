"""Checks the leader epoch file against the batches of a log, and rebuilds it from them if they differ.

Each batch has its epoch in the header. The file has no checksum. A wrong digit in a row would make a follower
truncate at an offset where the logs do not diverge.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest

from headrace.model.errors import CorruptLog
from headrace.model.ids import NO_EPOCH
from headrace.records.batch import BatchHeader
from headrace.storage.directory.checkpoint_files import write_rows
from headrace.storage.epoch.leader_epoch_cache import FILE_NAME, LeaderEpochFileCache
from headrace.storage.io.file_system import FileSystem
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_verifier import UNKNOWN

log = logging.getLogger(__name__)

NEAR_END_BYTES = 1024 * 1024  # of a segment: where its last two batches are searched


def read_epochs(files: FileSystem, directory: str) -> LeaderEpochFileCache | None:
    """Reads the file; returns None if it is corrupt."""
    try:
        return LeaderEpochFileCache(files, directory)
    except CorruptLog as damage:
        log.error("%s", damage)
        return None


def confirmed_epochs(
    files: FileSystem,
    directory: str,
    segments: Sequence[LogSegment],
    log_start: int,
    epochs: LeaderEpochFileCache | None,
    *,
    unsynced_from: int | None = None,
) -> LeaderEpochFileCache:
    """Returns the epochs of a log whose segments are open; rewrites the file if it does not match.

    `unsynced_from` is the recovery point, after a power loss: a batch from there on may be on disk although the file
    with its epoch was not synced yet.
    """
    if epochs is not None and _fit(epochs, segments, log_start) and not _is_behind(epochs, segments, log_start):
        if unsynced_from is not None:
            _add_unsynced(epochs, segments, unsynced_from)
        return epochs
    log.error("%s/%s contradicts the batches; rebuilding it from them", directory, FILE_NAME)
    write_rows(files, f"{directory}/{FILE_NAME}", (f"{epoch} {start}" for epoch, start in _from_batches(segments)))
    return LeaderEpochFileCache(files, directory)


def _fit(epochs: LeaderEpochFileCache, segments: Sequence[LogSegment], log_start: int) -> bool:
    """Returns whether no batch contradicts the file. Checks both sides of every start offset, and the end of the log.

    An epoch without a batch is no contradiction: compaction may have removed all of its records.
    """
    log_end = segments[-1].next_offset
    last_epoch = next((segment.last_epoch for segment in reversed(segments) if segment.size), UNKNOWN)
    if epochs.entries() == [(last_epoch, log_start)] and segments[0].first_epoch == last_epoch:
        return True  # by far the most common case, which needs no read
    rows = [(epoch, max(start, log_start)) for epoch, start in epochs.entries() if start < log_end]
    rows = [row for row, following in zip_longest(rows, rows[1:]) if following is None or following[1] > row[1]]
    if log_end > log_start and (not rows or rows[0][1] > log_start):
        rows.insert(0, (NO_EPOCH, log_start))  # batches from before there were epochs
    previous = None
    for epoch, start in rows:
        following = list(islice(_headers_from(segments, start), 2))
        if not _one_agrees(epochs, following):
            return False
        if previous is not None and (
            _holds_earlier_offset(segments, start, epoch) or _epochs_of(following[:1]) == [previous]
        ):
            return False
        previous = epoch
    return _one_agrees(epochs, [header for header in _last_headers(segments) if header.next_offset > log_start])


def _one_agrees(epochs: LeaderEpochFileCache, headers: Sequence[BatchHeader]) -> bool:
    """Returns whether a batch agrees. One of two batches may be corrupt: no checksum covers the epoch in a header."""
    return not headers or any(header.leader_epoch == epochs.epoch_of(header.base_offset) for header in headers)


def _holds_earlier_offset(segments: Sequence[LogSegment], start: int, epoch: int) -> bool:
    """Returns whether the last batch before `start` already has `epoch`."""
    before = next(_headers_from(segments, start - 1), None)
    return before is not None and before.base_offset < start and before.leader_epoch == epoch


def _is_behind(epochs: LeaderEpochFileCache, segments: Sequence[LogSegment], log_start: int) -> bool:
    """Returns whether recovery has accepted a batch with an epoch that is missing in the file."""
    if segments[-1].next_offset <= log_start:
        return False  # all records are deleted, and recovery has truncated their epochs
    if not any(segment.checked and segment.last_epoch > epochs.latest for segment in segments):
        return False
    # No checksum covers the epoch of a batch, and an epoch is written to the file before its first batch: one batch is
    # no proof.
    return all(epoch > epochs.latest for epoch in _epochs_of(_last_headers(segments)))


def _add_unsynced(epochs: LeaderEpochFileCache, segments: Sequence[LogSegment], unsynced_from: int) -> None:
    """Adds the epochs of the last batches that recovery accepted.

    Without them, later checks would reject the batches.
    """
    for epoch, start in list(_from_batches([one for one in segments if one.next_offset > unsynced_from])):
        if epoch > epochs.latest and start >= unsynced_from:
            for durable in epochs.assign(epoch, start):
                durable.sync()


def _epochs_of(headers: Sequence[BatchHeader]) -> list[int]:
    return [header.leader_epoch for header in headers]


def _last_headers(segments: Sequence[LogSegment]) -> list[BatchHeader]:
    last: deque[BatchHeader] = deque(maxlen=2)
    for segment in segments[-2:]:
        entry = segment.offset_index.last_before_position(max(segment.size // 2, segment.size - NEAR_END_BYTES))
        last.extend(_headers_of(segment, entry[1] if entry else 0))
    return list(last)


def _headers_from(segments: Sequence[LogSegment], offset: int) -> Iterator[BatchHeader]:
    for segment in segments:
        if segment.next_offset > offset:
            position = segment.translate_offset(offset) if offset > segment.base_offset else 0
            yield from (header for header in _headers_of(segment, position) if header.last_offset >= offset)


def _headers_of(segment: LogSegment, position: int) -> Iterator[BatchHeader]:
    try:
        for _, header in segment.headers(position):
            yield header
    except CorruptLog as damage:
        log.error("%s; leader epochs that began behind it in this segment are found later", damage)


def _from_batches(segments: Sequence[LogSegment]) -> Iterator[tuple[int, int]]:
    """Yields each epoch, with the end of the preceding epoch's batches as its start offset.

    Compaction may have removed the first batches of an epoch. A start offset that is too low makes a follower
    truncate records that it fetches again. With one that is too high it would keep records that the leader never had.
    """
    latest, doubtful, end = NO_EPOCH, None, segments[0].base_offset if segments else 0
    for segment in segments:
        for header in _headers_of(segment, 0):
            # An epoch above that of the next batch is corrupt.
            if doubtful is not None and doubtful.leader_epoch <= header.leader_epoch:
                latest = doubtful.leader_epoch
                yield latest, end
            if doubtful is not None:
                end = doubtful.next_offset
            doubtful = header if header.leader_epoch > latest else None
            if doubtful is None:
                end = header.next_offset
    if doubtful is not None:
        yield doubtful.leader_epoch, end
