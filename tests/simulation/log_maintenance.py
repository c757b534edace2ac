"""What changes a simulated log from below and above: DeleteRecords, retention, compaction, truncation."""

from collections.abc import Callable
from contextlib import suppress

from headrace.model.errors import DiskFull, StorageError
from headrace.storage.cleaner.cleaner import Cleaner
from headrace.storage.cleaner.log_to_clean import cleanable
from headrace.storage.io.file_system import FileSystem
from headrace.storage.io.stepwise import Task
from headrace.storage.log_retention import expired_segments
from headrace.storage.log_truncation import Truncation
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_replacement import ReplacedSegment, set_aside_segment_files
from tests.simulation.simulated_log import NAME, SimulatedLog

KEY_MAP_BYTES = (300, 1 << 20)  # the first is full after a few keys, so that a round ends early


class MaintainedLog(SimulatedLog):
    """Maintains a log as `partition.py`, `file_deleter.py`, `log_manager.py` and `replica_manager.py` do.

    Without their event loop.
    """

    # ── the log start ──

    def delete_records(self) -> None:
        start = self.log.log_start_offset
        if self.model.high_watermark > start:
            paths = self._advance_log_start(self.random.randrange(start, self.model.high_watermark + 1))
            self.log_dir.write_log_starts()
            self.model.start = max(self.model.start, self.log.log_start_offset)  # acknowledged
            self.backlog.append(lambda: self._remove(paths))

    def apply_retention(self) -> None:
        log = self.log
        expired = expired_segments(
            log.segments,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            high_watermark=self.last_stable_offset,
            config=self.config,
            now_ms=self.wall_ms,
        )
        if not expired.segments:
            return
        if expired.segments == len(log.segments):
            log.roll(self.wall_ms)
        paths = self._advance_log_start(expired.log_start_offset)
        work: list[Callable[[], None]] = [self.log_dir.write_log_starts, lambda: self._remove(paths)]
        self.random.shuffle(work)
        self.backlog += work

    def _advance_log_start(self, offset: int) -> list[str]:
        """Returns the files to remove."""
        self.model.start_asked = max(self.model.start_asked, offset)
        segments = self.log.advance_log_start(offset)
        self.log_dir.note(NAME, self.log)
        paths: list[str] = []
        try:
            self._set_aside(segments, paths)
        except StorageError:
            self.files.heal()
            self._set_aside(segments, paths)
        return paths

    def _set_aside(self, segments: list[LogSegment], paths: list[str]) -> None:
        for segment in segments:
            paths += set_aside_segment_files(self.files, segment)

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self.files.remove(path)

    # ── compaction ──

    def compact(self) -> None:
        """One round of the cleaner; between its steps the log is in use."""
        log = self.log
        dirty = cleanable(
            log.segments,
            cleaned_to=self.log_dir.cleaned_to(NAME),
            log_start_offset=log.log_start_offset,
            stable_offset=min(self.last_stable_offset, log.recovery_point),
            config=self.config,
            now_ms=self.wall_ms,
        )
        if not dirty.is_due(self.config):
            return
        self.note(f"compact {dirty.first_dirty} to {dirty.end}")
        cleaner = Cleaner(log, dirty, now_ms=self.wall_ms, key_map_bytes_max=self.random.choice(KEY_MAP_BYTES))
        try:
            self._run_in_steps(cleaner.run())
        finally:
            self.backlog += [self._removal_of(replaced) for replaced in cleaner.cleaned.replaced]
        self.log_dir.note_cleaned(NAME, cleaner.cleaned.cleaned_to)
        self.log_dir.write_cleaned()

    def _run_in_steps(self, task: Task[object]) -> None:
        for step in task:
            if step is not None:
                step()
            if self.random.random() < 0.1:
                self._use_during_compaction()

    def _use_during_compaction(self) -> None:
        action = self.random.choice(
            [
                self.produce,
                self.end_transaction,
                self.sync_behind_appends,
                self.apply_retention,
                self.delete_records,
                self.read,
                self.expire_producers,
                self.truncate,
            ]
        )
        self.note(f"{action.__name__} during compaction")
        try:
            action()
        except DiskFull:  # one request is rejected, and the round goes on
            assert self.log.log_end_offset == self.model.end_offset, "rejected, and written all the same"

    def _removal_of(self, replaced: ReplacedSegment) -> Callable[[], None]:
        return lambda: replaced.remove(self.files)

    # ── truncation ──

    def truncate(self) -> None:
        """As a follower of a new leader: mostly records that are not committed, in a `delete` log also others."""
        log, model = self.log, self.model
        if model.high_watermark >= log.log_end_offset and self.random.random() < 0.7:
            return
        committed = 3 if self.random.random() < 0.2 and not log.config.compacts else 0
        lowest = max(model.high_watermark - committed, log.log_start_offset, 0)
        end = self.random.randrange(lowest, log.log_end_offset + 1)
        self.note_missing_snapshot()
        starts_over = end <= log.log_start_offset and end < log.log_end_offset
        self.leader_epoch += 1
        model.high_watermark = min(model.high_watermark, end)
        model.start = min(model.start, end)
        try:
            self._truncate_in_steps(end)
        except DiskFull as error:  # as `Partitions.truncate`: half of what was to be truncated is left
            raise StorageError(f"offline: {error}") from error
        self._lower_checkpoints(log.log_end_offset)
        model.truncate(log.log_end_offset, log.log_start_offset)
        log.producers.high_watermark_advanced(model.high_watermark)
        if starts_over:
            model.may_be_unknown.update(model.producers)
            model.may_be_behind.update(model.producers)  # also those of the deleted records
        self.note(f"truncated to {end}, ends at {log.log_end_offset}")
        self.sync()
        if log.log_end_offset <= log.log_start_offset:
            model.start_asked = max(model.start_asked, log.log_start_offset)

    def _truncate_in_steps(self, end: int) -> None:
        log, is_over = self.log, False
        while not is_over:
            step = Truncation(log, end)
            step.replay()
            self._lower_checkpoints(end)
            if not step.fits():
                continue
            step.apply(self.wall_ms, self._let_go)
            self.model.high_watermark = min(self.model.high_watermark, log.log_end_offset)
            log.producers.high_watermark_advanced(self.model.high_watermark)
            is_over = step.is_last
            if not is_over:
                self.files.sync_dir(log.directory)

    def _lower_checkpoints(self, offset: int) -> None:
        self.log.recovery_point = min(self.log.recovery_point, offset)
        self.log_dir.lower(NAME, offset)
        self.log_dir.flush_forgotten_checkpoints()

    def _let_go(self, files: FileSystem, segment: LogSegment) -> None:
        paths = set_aside_segment_files(files, segment)
        self.backlog.append(lambda: self._remove(paths))
