"""Truncating a log that turned out to differ from its leader's, and starting one over at another offset.

The caller has made sure before that no checkpoint on disk remembers more than will be left: recovery takes what is
missing below the recovery point for damage.

The producers at the new end are found before anything is truncated, by reading up to a whole segment: `replay` may run
in a thread. What changes the log is short and waits for no disk. The caller syncs the directory between the steps of a
truncation, off the event loop; the next sync of the log includes the directory in any case.
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
    """Where a log ends after a step of its truncation."""

    segments: list[LogSegment]  # that stay
    position: int  # in the last of them
    end_offset: int


class Truncation:
    """One step towards a log that ends at an offset; a batch that holds the offset goes as a whole.

    Made on the event loop; then `replay` in a thread; then, on the loop and if it still `fits` its log, `apply`.
    Unless it `is_last`, the caller syncs the directory and makes the next step.
    """

    def __init__(self, log: Log, end_offset: int) -> None:
        self._log = log
        self._anew_at = end_offset if end_offset <= log.log_start_offset and end_offset < log.log_end_offset else None
        # Whole segments go first: else one of them could come back after a power loss beside a shorter predecessor.
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
        self._read = self._state()  # behind `_cut_point`, which may have rebuilt an index

    def replay(self) -> None:
        """Reads the producers at the end of this step, and writes files that nothing looks for yet."""
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
        """Whether the log is still the one that was read. If not, or if it turned out to be corrupt, begin again."""
        news = self._new_holes
        if news is not None:
            for hole in news.holes:
                say_damaged(news.segment, hole)
                news.segment.note_hole(hole)
        return news is None and self._read == self._state()

    def apply(self, now_ms: int, let_go: LetGo = remove_segment_files) -> None:
        """`let_go` gets each segment that goes, the last one first."""
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
        remove_snapshots(log.files, log.directory, after=end)  # they speak of batches that are gone
        _settle(log, end, self._states)

    def _state(self) -> tuple[object, ...]:
        """What the replay relies on: the same segments, with the same batches to read."""
        log = self._log
        return [*log.segments], log.log_start_offset, log.log_end_offset, [*holes_in(log)]


def _cut_point(segment: LogSegment, end_offset: int) -> tuple[int, int]:
    """Position and offset of the batch boundary at which to truncate."""
    if segment.next_offset <= end_offset:
        return segment.size, segment.next_offset
    hole = segment.hole_at(end_offset)
    if hole is not None:  # its header may say anything
        return hole.position, hole.base_offset
    position = segment.translate_offset(end_offset) if end_offset > segment.base_offset else 0
    header = header_at(segment.file, position)
    return position, end_offset if header is None else min(end_offset, header.base_offset)


def truncate_log(log: Log, end_offset: int, now_ms: int, let_go: LetGo = remove_segment_files) -> None:
    """A truncation in one go, where nothing else happens meanwhile and no power is lost between its steps."""
    is_over = False
    while not is_over:
        step = Truncation(log, end_offset)
        step.replay()
        if step.fits():
            step.apply(now_ms, let_go)
            is_over = step.is_last


def restart_log_at(log: Log, offset: int, now_ms: int, let_go: LetGo = remove_segment_files) -> None:
    """Nothing of what was there counts any more: an empty log that begins at `offset`."""
    while log.segments:
        let_go(log.files, log.segments.pop())
    # Also the one that a clean stop left past all segments: recovery would take it for a snapshot of the new records.
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
    # Segments and snapshots of what was cut are gone. None may come back beside other records: before those count, that
    # is on disk.
    log.flush_before_next([DirectorySync(log.files, log.directory)])
