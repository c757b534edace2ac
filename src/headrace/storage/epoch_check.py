"""Do the leader epochs in their file fit the batches? If not, the batches know better: each carries its own.

The file has no checksum. A row that is wrong by a digit would send a client to an offset where its history never
parted from ours.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest

from headrace.model.errors import CorruptLog
from headrace.model.ids import NO_EPOCH
from headrace.records.batch import BatchHeader
from headrace.storage.checkpoints import write_rows
from headrace.storage.files import Files
from headrace.storage.leader_epochs import FILE_NAME, LeaderEpochs
from headrace.storage.segment import Segment
from headrace.storage.segment_check import UNKNOWN

log = logging.getLogger(__name__)

NEAR_END_BYTES = 1024 * 1024  # of a segment: where its last two batches are looked for


def read_epochs(files: Files, directory: str) -> LeaderEpochs | None:
    """What the file says; None if it cannot be read."""
    try:
        return LeaderEpochs(files, directory)
    except CorruptLog as damage:
        log.error("%s", damage)
        return None


def confirmed_epochs(
    files: Files, directory: str, segments: Sequence[Segment], log_start: int, epochs: LeaderEpochs | None
) -> LeaderEpochs:
    """The epochs of a log whose segments are open; their file is written anew if it does not fit."""
    if epochs is not None and _fit(epochs, segments, log_start) and not _is_behind(epochs, segments):
        return epochs
    log.error("%s/%s does not fit the batches; it is written anew from what they say", directory, FILE_NAME)
    write_rows(files, f"{directory}/{FILE_NAME}", (f"{epoch} {start}" for epoch, start in _from_batches(segments)))
    return LeaderEpochs(files, directory)


def _fit(epochs: LeaderEpochs, segments: Sequence[Segment], log_start: int) -> bool:
    """Looks at both sides of every beginning of an epoch, and at the end of the log."""
    log_end = segments[-1].next_offset
    last_epoch = next((segment.last_epoch for segment in reversed(segments) if segment.size), UNKNOWN)
    if epochs.entries() == [(last_epoch, log_start)] and segments[0].first_epoch == last_epoch:
        return True  # by far the most common case, without another look at the files
    rows = [(epoch, max(start, log_start)) for epoch, start in epochs.entries() if start < log_end]
    rows = [row for row, following in zip_longest(rows, rows[1:]) if following is None or following[1] > row[1]]
    if log_end > log_start and (not rows or rows[0][1] > log_start):
        rows.insert(0, (NO_EPOCH, log_start))  # batches from before there were epochs
    previous = None
    for epoch, start in rows:
        if epoch not in _epochs_from(segments, start):
            return False
        if previous is not None and (
            _epochs_from(segments, start - 1)[:1] == [epoch] or _epochs_from(segments, start)[:1] == [previous]
        ):
            return False
        previous = epoch
    return previous is None or previous in _last_epochs(segments)


def _is_behind(epochs: LeaderEpochs, segments: Sequence[Segment]) -> bool:
    """Whether a batch that recovery has just accepted is of an epoch that the file has not heard of."""
    if not any(segment.checked and segment.last_epoch > epochs.latest for segment in segments):
        return False
    # The epoch of a batch has no checksum, and ours are in the file before the batch is: one batch proves nothing.
    return all(epoch > epochs.latest for epoch in _last_epochs(segments))


def _epochs_from(segments: Sequence[Segment], offset: int) -> list[int]:
    """Of the batch that holds the offset, and of the next: one of them may be damaged."""
    return [header.leader_epoch for header in islice(_headers_from(segments, offset), 2)]


def _last_epochs(segments: Sequence[Segment]) -> list[int]:
    last: deque[int] = deque(maxlen=2)
    for segment in segments[-2:]:
        entry = segment.offset_index.last_before_position(max(segment.size // 2, segment.size - NEAR_END_BYTES))
        last.extend(header.leader_epoch for header in _headers_of(segment, entry[1] if entry else 0))
    return list(last)


def _headers_from(segments: Sequence[Segment], offset: int) -> Iterator[BatchHeader]:
    for segment in segments:
        if segment.next_offset > offset:
            position = segment.position_of(offset) if offset > segment.base_offset else 0
            yield from (header for header in _headers_of(segment, position) if header.last_offset >= offset)


def _headers_of(segment: Segment, position: int) -> Iterator[BatchHeader]:
    try:
        for _, header in segment.headers(position):
            yield header
    except CorruptLog as damage:
        log.error("%s; leader epochs that began behind it in this segment are found later", damage)


def _from_batches(segments: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    latest, doubtful = NO_EPOCH, None
    for segment in segments:
        for header in _headers_of(segment, 0):
            # An epoch above that of the next batch is damage.
            if doubtful is not None and doubtful.leader_epoch <= header.leader_epoch:
                latest = doubtful.leader_epoch
                yield latest, doubtful.base_offset
            doubtful = header if header.leader_epoch > latest else None
    if doubtful is not None:
        yield doubtful.leader_epoch, doubtful.base_offset
