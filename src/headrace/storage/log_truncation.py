"""Truncates a log that diverges from its leader's, or restarts it at another offset.

Precondition: no checkpoint on disk has a recovery point above the new end. Recovery would treat the records that are
missing below it as corruption.

The producer states at the new end are rebuilt before anything is truncated, by reading up to a whole segment:
`replay` may run in a thread. The change of the log is short and waits for no disk. The caller syncs the directory
between the steps of a truncation, off the event loop; the next sync of the log includes the directory in any case.
"""

from collections.abc import Callable
from typing import NamedTuple

from headrace.storage.io.file_system import DirectorySync, FileSystem
from headrace.storage.log import Log
from headrace.storage.producer.producer_snapshot_file import remove_snapshots
from headrace.storage.producer.producer_state_loader import NewHoles, ReplayedIndex, replay_to
from headrace.storage.producer.producer_state_manager import ProducerStateManager
from headrace.storage.segment.corrupt_ranges import holes_in
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_replacement import remove_segment_files
from headrace.storage.segment.segment_verifier import header_at, say_damaged
from headrace.storage.segment.transaction_index import PreparedIndex

LetGo = Callable[[FileSystem, LogSegment], None]  # removes the files of a segment that has left its log


class _Point(NamedTuple):
    """Log end after one step of a truncation."""

    segments: list[LogSegment]  # segments that are kept
    position: int  # in the last of them
    end_offset: int


class Truncation:
    """One step of a truncation to `end_offset`; a batch that contains the offset is removed as a whole.

    Created on the event loop. Then `replay` runs in a thread. Then, on the loop and if `fits` returns True, `apply`.
    Unless it `is_last`, the caller syncs the directory and makes the next step.
    """

    def __init__(self, log: Log, end_offset: int) -> None:
        self._log = log
        self._anew_at = end_offset if end_offset <= log.log_start_offset and end_offset < log.log_end_offset else None
        # Whole segments are removed in a step of their own: otherwise one of them could reappear after a power loss,
        # next to a shorter predecessor.
        kept = [one for one in log.segments if one is log.segments[0] or one.base_offset <= end_offset]
        self.is_last = self._anew_at is not None or len(kept) == len(log.segments)
        self._point: _Point | None = None
        if not self.is_last:
            self._point = _Point(kept, kept[-1].size, kept[-1].next_offset)
        elif self._anew_at is None and end_offset < log.log_end_offset:
            kept = [one for one in log.segments if one is log.segments[0] or one.base_offset < end_offset]
            self._point = _Point(kept, *_cut_point(kept[-1], end_offset))
        self._states = ProducerStateManager()
        self._indexes: list[tuple[ReplayedIndex, PreparedIndex]] = []
        self._new_holes: NewHoles | None = None
        self._read = self._state()  # after `_cut_point`, which may have rebuilt an index

    def replay(self) -> None:
        """Rebuilds the producer states at the end of this step. The files that it writes are not in use yet."""
        if self._point is None:
            return
        try:
            replayed = replay_to(self._log.files, self._log.directory, *self._point)
        except NewHoles as news:
            self._new_holes = news
            return
        self._states = replayed.states
        for index in replayed.indexes if self.is_last else ():
            prepared = index.segment.aborted.prepare_rewrite(index.start, self._point.end_offset, index.txns)
            self._indexes.append((index, prepared))

    def fits(self) -> bool:
        """Returns whether the log is unchanged since it was read.

        If not, or if it is corrupt, the caller begins again.
        """
        news = self._new_holes
        if news is not None:
            for hole in news.holes:
                say_damaged(news.segment, hole)
                news.segment.note_hole(hole)
        return news is None and self._read == self._state()

    def apply(self, now_ms: int, let_go: LetGo = remove_segment_files) -> None:
        """Applies the step. Calls `let_go` with each removed segment, the last one first."""
        log = self._log
        if self._anew_at is not None:
            restart_log_at(log, self._anew_at, now_ms, let_go)
            return
        if self._point is None:
            return
        kept, position, end = self._point
        while len(log.segments) > len(kept):
            let_go(log.files, log.segments.pop())
        for index, prepared in self._indexes:
            index.segment.aborted.adopt(prepared, index.txns)
        if log.active.next_offset > end:
            log.active.truncate(position, end)
        log.epochs.truncate_from_end(end)
        remove_snapshots(log.files, log.directory, after=end)  # they describe batches that were removed
        _settle(log, end, self._states)

    def _state(self) -> tuple[object, ...]:
        """Returns what the replay depends on: the segments and the readable batches."""
        log = self._log
        return [*log.segments], log.log_start_offset, log.log_end_offset, [*holes_in(log)]


def _cut_point(segment: LogSegment, end_offset: int) -> tuple[int, int]:
    """Returns position and offset of the batch boundary at which to truncate."""
    if segment.next_offset <= end_offset:
        return segment.size, segment.next_offset
    hole = segment.hole_at(end_offset)
    if hole is not None:  # the header may be corrupt
        return hole.position, hole.base_offset
    position = segment.translate_offset(end_offset) if end_offset > segment.base_offset else 0
    header = header_at(segment.file, position)
    return position, end_offset if header is None else min(end_offset, header.base_offset)


def truncate_log(log: Log, end_offset: int, now_ms: int, let_go: LetGo = remove_segment_files) -> None:
    """Truncates in one call.

    For callers without concurrent operations, where no power loss can occur between the steps.
    """
    is_over = False
    while not is_over:
        step = Truncation(log, end_offset)
        step.replay()
        if step.fits():
            step.apply(now_ms, let_go)
            is_over = step.is_last


def restart_log_at(log: Log, offset: int, now_ms: int, let_go: LetGo = remove_segment_files) -> None:
    """Removes all segments and starts an empty log at `offset`."""
    while log.segments:
        let_go(log.files, log.segments.pop())
    # Includes the snapshot of a clean shutdown past all segments, which recovery would apply to the new records.
    remove_snapshots(log.files, log.directory, after=-1)
    fresh = LogSegment(
        log.files,
        log.directory,
        offset,
        index_interval_bytes=log.config.index_interval_bytes,
        create=True,
        now_ms=now_ms,
    )
    fresh.epochs, fresh.rebuilder = log.epochs, log.rebuilder
    log.segments.append(fresh)
    log.log_start_offset = offset
    log.epochs.truncate_from_end(0)
    log.holes = []
    _settle(log, offset, ProducerStateManager())


def _settle(log: Log, end: int, producers: ProducerStateManager) -> None:
    log.holes = [hole for hole in log.holes if hole.next_offset <= end]
    log.producers = producers
    log.ends_at(end)
    # Removed segments and snapshots must not reappear next to new records. The next sync makes the removal durable
    # before it reports those records as synced.
    log.flush_before_next([DirectorySync(log.files, log.directory)])
