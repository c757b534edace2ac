"""The log of one partition: segments, producer states and leader epochs, kept in step.

Appends and lookups are synchronous and know nothing of requests. What is *on disk* is tracked apart from what was
*written*: `unsynced` hands the files that need a sync to whoever does the syncing, `synced` takes the news back.
Opening an existing folder is in `log_loader.py`, choosing what to delete in `log_retention.py`, compaction in
`storage/cleaner/cleaner.py`, copying from a leader in `log_append.py`, reading in `log_read.py` and
`timestamp_lookup.py`.
"""

import logging
from typing import TYPE_CHECKING

from headrace.config.values import LogConfig
from headrace.model.errors import StorageError
from headrace.records.batch import LENGTH_OVERHEAD, BatchHeader, parse_header, patch_offset_and_epoch
from headrace.records.crc import crc32c
from headrace.storage.directory.replica_inventory import ReplicaMark
from headrace.storage.epoch.leader_epoch_cache import LeaderEpochFileCache
from headrace.storage.io.file_system import Bytes, DirectorySync, Durable, File, FileSystem
from headrace.storage.io.preallocation import Preallocator
from headrace.storage.log_read import aborted_transactions, read
from headrace.storage.log_types import FileRecords, LogAppendInfo, Producer
from headrace.storage.producer.producer_snapshot_file import (
    Appendix,
    DueSnapshots,
    UnsyncedSnapshot,
    encode_snapshot,
    snapshot_path,
)
from headrace.storage.producer.producer_state_entry import COORDINATOR_EPOCH_MAX
from headrace.storage.producer.producer_state_manager import CompletedTxn, ProducerStateManager
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_replacement import remove_segment_files
from headrace.storage.segment.segment_verifier import CorruptRange
from headrace.storage.segment.transaction_index import AbortedTxn, TxnIndex

if TYPE_CHECKING:
    from headrace.records.control import EndMarker
    from headrace.storage.segment.index_rebuild import Rebuilder

log = logging.getLogger(__name__)

# Remembered ends of recent batches: readers at the tail and the watermark ask for exactly these, so that they need
# no index lookup. More than the batches that can wait for one group commit, few enough for 10,000 partitions.
RECENT_ENDS_MAX = 64


class Log:
    def __init__(
        self,
        files: FileSystem,
        directory: str,
        config: LogConfig,
        *,
        segments: list[LogSegment],
        log_start_offset: int,
        recovery_point: int,
        producers: ProducerStateManager,
        epochs: LeaderEpochFileCache,
        holes: list[CorruptRange] | None = None,
        unsynced: list[Durable] | None = None,
    ) -> None:
        assert segments, "a log always has an active segment"
        self.files = files
        self.directory = directory
        self.config = config
        self.segments = segments
        self.log_start_offset = log_start_offset
        self.log_end_offset = segments[-1].next_offset
        self.recovery_point = recovery_point  # everything below is on disk
        self.producers = producers
        self.epochs = epochs
        for segment in segments:
            segment.epochs = epochs
        self.holes = holes or []  # ranges of offsets whose bytes are gone altogether
        # Most logs never see a transaction; their readers need not look for aborted ones.
        self.has_aborted = any(name.endswith(".txnindex") for name in files.list(directory))
        self._unsynced: list[Durable] = unsynced or []
        self._rounds_out = 0  # syncs that somebody was asked for and has not told the outcome of
        self._rounds_stale = 0  # those of them that are about bytes which were cut since
        self.truncations = 0  # work on sealed segments that takes several steps must not go on behind one
        self.has_changed = False  # since it was opened; an untouched log is closed without a write
        self.tail_positions: dict[int, tuple[LogSegment, int]] = {}
        self.room = Preallocator()
        self._due_snapshots = DueSnapshots(files, directory)
        self.rebuilder: Rebuilder | None = None
        self.mark: ReplicaMark | None = None  # says that the replica has records, behind the first that are synced

    @classmethod
    def create(
        cls, files: FileSystem, directory: str, config: LogConfig, *, now_ms: int, unsynced: list[Durable] | None = None
    ) -> "Log":
        """An empty log. Nothing is on disk for sure before the first sync, which also waits for `unsynced`."""
        files.make_dir(directory)
        first = LogSegment(
            files, directory, 0, index_interval_bytes=config.index_interval_bytes, create=True, now_ms=now_ms
        )
        return cls(
            files,
            directory,
            config,
            segments=[first],
            log_start_offset=0,
            recovery_point=0,
            producers=ProducerStateManager(),
            epochs=LeaderEpochFileCache(files, directory),
            unsynced=[*(unsynced or []), DirectorySync(files, directory), first.file],
        )

    def rebuild_with(self, rebuilder: "Rebuilder") -> None:
        """From here on, an event loop uses the log: indexes of large segments are rebuilt elsewhere."""
        self.rebuilder = rebuilder
        for segment in self.segments:
            segment.rebuilder = rebuilder

    @property
    def active(self) -> LogSegment:
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    # Appending

    def append(self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int) -> LogAppendInfo:
        """Give a checked batch its offsets and write it, unless its producer has already written it."""
        if header.producer_id >= 0:
            written_at = self.producers.check(header)
            if written_at is not None:
                return LogAppendInfo(written_at, written_at + header.last_offset_delta + 1, duplicate=True)
        return self._write(batch, header, leader_epoch, now_ms)

    def append_for_producer(
        self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> LogAppendInfo:
        """A batch that a coordinator writes in a producer's transaction: it has no sequence, only an epoch."""
        self.producers.check_without_sequence(header)
        return self._write(batch, header, leader_epoch, now_ms)

    def append_marker(
        self,
        marker: "EndMarker",
        producer: Producer,
        leader_epoch: int,
        now_ms: int,
        *,
        uses_tv2: bool,
        newest_coordinator_epoch: int = COORDINATOR_EPOCH_MAX,
    ) -> LogAppendInfo:
        """The end of a producer's transaction; it takes one offset."""
        from headrace.records.control import build_marker_batch

        batch = memoryview(
            bytearray(
                build_marker_batch(
                    marker, producer_id=producer.producer_id, producer_epoch=producer.epoch, timestamp=now_ms
                )
            )
        )
        header = parse_header(batch)
        self.producers.check_marker(
            header,
            marker.coordinator_epoch,
            uses_tv2=uses_tv2,
            newest_coordinator_epoch=newest_coordinator_epoch,
        )
        return self._write(batch, header, leader_epoch, now_ms, marker)

    def _write(
        self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int, marker: "EndMarker | None" = None
    ) -> LogAppendInfo:
        base_offset = self.log_end_offset
        header = header.placed(base_offset, leader_epoch)
        segment = self.segment_for(header, now_ms)
        if leader_epoch > self.epochs.latest:
            self.begin_epoch(leader_epoch, base_offset)
        patch_offset_and_epoch(batch, base_offset, leader_epoch)
        if marker is None:
            segment.append(batch, header)
            if header.producer_id >= 0:
                self.producers.applied(header)
        else:
            self.write_marker(segment, batch, header, marker)
        return self.appended(segment, header)

    def begin_epoch(self, epoch: int, start_offset: int) -> None:
        """The next batch is the first of this leader epoch.

        Before the batch, because this can fail: an epoch without a batch is forgotten, a batch without its epoch is
        not. The next sync brings the epoch to disk before the batch.
        """
        self.flush_before_next(self.epochs.assign(epoch, start_offset))
        self.has_changed = True

    def write_marker(self, segment: LogSegment, batch: Bytes, header: BatchHeader, marker: "EndMarker") -> None:
        """Write the marker and, for an abort, its `.txnindex` entry: both, or neither and a StorageError.

        The entry is written first. An entry without its marker is removed here or by recovery; a marker without its
        entry would expose aborted records, and a retry would write a second marker at the same offset.
        """
        ended = None if marker.commits else self.producers.ended_by(header, aborted=True)
        if ended is None:
            segment.append(batch, header)
        else:
            segment.aborted.note(aborted_txn(ended))
            self.has_aborted = True
            try:
                segment.append(batch, header)
            except StorageError:
                segment.aborted.remove_last()
                raise
        self.producers.applied_marker(header, aborted=not marker.commits, coordinator_epoch=marker.coordinator_epoch)

    def appended(self, segment: LogSegment, header: BatchHeader) -> LogAppendInfo:
        """A batch is in the segment, and the producers' state includes it: the log ends behind it."""
        next_offset = segment.next_offset
        self.grown_to(next_offset, segment)
        return LogAppendInfo(header.base_offset, next_offset, duplicate=False)

    def grown_to(self, offset: int, segment: LogSegment) -> None:
        """The segment holds more than before, and so the log does."""
        self.log_end_offset = offset
        self.has_changed = True
        ends = self.tail_positions
        ends[offset] = (segment, segment.file.size)
        if len(ends) > RECENT_ENDS_MAX:
            del ends[next(iter(ends))]
        if not self._unsynced or self._unsynced[-1] is not segment.file:
            self._unsynced.append(segment.file)

    def segment_for(self, header: BatchHeader, now_ms: int) -> LogSegment:
        """The active segment, or a new one if a batch does not belong there any more."""
        active = self.segments[-1]
        config = self.config
        if not active.file.size or (
            active.has_room_for(
                header.length + LENGTH_OVERHEAD, header.last_offset, config.segment_bytes, config.segment_index_bytes
            )
            and not self.is_old_enough_to_roll(active, header.max_timestamp, now_ms)
        ):
            return active
        return self.roll(now_ms)

    def is_old_enough_to_roll(self, segment: LogSegment, timestamp: int, now_ms: int) -> bool:
        """By the records' own time where they have one, so that replayed history rolls as it did when it was new."""
        age = timestamp - segment.first_timestamp if segment.first_timestamp >= 0 else now_ms - segment.opened_ms
        limit_ms = self.config.segment_ms
        if self.config.compacts:
            # What is to be compacted in time has to leave the active segment in time.
            limit_ms = min(limit_ms, self.config.max_compaction_lag_ms)
        if self.config.segment_jitter_ms:
            # By chance, but the same chance whenever it is asked: the place of the segment decides.
            limit_ms -= crc32c(segment.path.encode()) % min(self.config.segment_jitter_ms, limit_ms)
        return age > limit_ms

    def roll(self, now_ms: int) -> LogSegment:
        """Close the active segment and start one at the log's end.

        The loop waits for no disk here: the next sync brings the new name there, before anything in the new segment
        counts as written. A snapshot that a power loss tears is passed over for the one before.
        """
        self.active.seal()
        self.trim_preallocation()
        fresh = LogSegment(
            self.files,
            self.directory,
            self.log_end_offset,
            index_interval_bytes=self.config.index_interval_bytes,
            create=True,
            now_ms=now_ms,
        )
        # From here on nothing fails: an empty segment that is not in the log must not be left among longer ones.
        self._snapshot_after(self._seal_aborted())
        self._unsynced.append(DirectorySync(self.files, self.directory))
        fresh.epochs, fresh.rebuilder = self.epochs, self.rebuilder
        self.segments.append(fresh)
        return fresh

    def trim_preallocation(self) -> None:
        """The file of the active segment ends where its batches do, durably with the next sync."""
        file = self.active.file
        if not file.trim_preallocation():
            return
        self.has_changed = True
        if file not in self._unsynced:
            self._unsynced.append(file)

    def _seal_aborted(self) -> list[Durable]:
        """What has to be on disk before a producer snapshot at the end of the log is written.

        The indexes of older segments are among them where recovery or a truncation has written them again.
        """
        return [unsynced for segment in self.segments for unsynced in segment.aborted.seal()]

    def _snapshot_after(self, aborted: list[Durable]) -> None:
        """Write the producers' snapshot at the end of the log, not before these are on disk.

        A snapshot that waits for an index makes all later ones wait, because they vouch for the same index.
        """
        if aborted or self._due_snapshots:
            due = self._due_snapshots.add(self.log_end_offset, self._snapshot())
            self._unsynced += [*aborted, due]
            return
        try:
            self.write_producer_snapshot(sync=False)
        except StorageError as error:
            log.warning("%s: no producer snapshot; recovery uses an older one: %s", self.directory, error)
        else:
            self._unsynced.append(UnsyncedSnapshot(self.files, snapshot_path(self.directory, self.log_end_offset)))

    def write_producer_snapshot(self, *, sync: bool = True) -> None:
        path = snapshot_path(self.directory, self.log_end_offset)
        self.files.replace(path, self._snapshot(), sync=sync)

    def _snapshot(self) -> bytes:
        sums = {one.base_offset: one.aborted.sum for one in self.segments if one.aborted.sum}
        return encode_snapshot(self.producers.rows(), Appendix(sums, self.producers.idle_ms()))

    # Syncing

    def flush_before_next(self, work: list[Durable]) -> None:
        """Have the next sync wait for these too."""
        self._unsynced = [*work, *self._unsynced]

    def take_unflushed(self) -> tuple[list[Durable], int]:
        """As `unsynced`, for one of many syncs: the appends behind it may find room in the file."""
        if self.segments:  # else it was abandoned since it became dirty
            self.room.round_begins(self.active.base_offset, self.active.file, self.config.segment_bytes)
        return self.unsynced()

    def unsynced(self) -> tuple[list[Durable], int]:
        """What to sync, and the offset that will be on disk once it is. Forgets it: the caller has it now."""
        work, self._unsynced = self._unsynced, []
        if self.mark is not None and self.log_end_offset > 0 and not self.mark.is_made:
            work.append(self.mark.begin())
        self._rounds_out += 1
        return work, self.log_end_offset

    def synced(self, offset: int) -> bool:
        """Outcomes come in the order of `unsynced`. False if the log was cut in between: it says nothing then."""
        self._rounds_out -= 1
        if self._rounds_stale:
            self._rounds_stale -= 1
            return False
        self.recovery_point = max(self.recovery_point, offset)
        if self._due_snapshots:
            self._unsynced += self._due_snapshots.write()
        return True

    def truncate_unflushed(self) -> list[Durable]:
        """After a failed sync: let go of what is not on disk for sure. Returns what makes that last, once synced.

        The kernel has marked those pages as clean. The next start would find them in its cache, take them for
        written, and lose them at the next power cut.
        """
        end = self.recovery_point
        self.active.rebuilder = None  # the partition goes offline: its log is truncated now or not at all
        while len(self.segments) > 1 and self.segments[-1].base_offset >= end:
            remove_segment_files(self.files, self.segments.pop())
        if self.active.next_offset > end:
            self.active.truncate(self.active.translate_offset(end) if end > self.active.base_offset else 0, end)
        self.log_end_offset = end
        self._unsynced, self.tail_positions = [], {}
        self._due_snapshots.clear()
        # For good: else it could come back after a start that did not find it.
        return [DirectorySync(self.files, self.directory), self.active.file]

    def write_unsynced_again(self) -> None:
        """After a failed sync of records that are acknowledged: a sync after the next start brings them to disk.

        The kernel has marked their pages as clean, so that sync would succeed without writing them.
        """
        for segment in self.segments:
            if segment.next_offset > self.recovery_point:
                segment.file.write_again()

    # Reading: see log_read.py; finding by time: timestamp_lookup.py

    def read(self, offset: int, bytes_max: int, limit: int) -> FileRecords | None:
        return read(self, offset, bytes_max, limit)

    def aborted_transactions(self, offset: int, records: FileRecords) -> list[AbortedTxn]:
        return aborted_transactions(self, offset, records)

    # Shrinking

    def advance_log_start(self, offset: int) -> list[LogSegment]:
        """Forget everything below `offset`; returns the segments that are now wholly below it, already let go.

        Their files are removed by the caller, oldest first and off the loop: a crash in between leaves segments
        below the checkpointed log start, which recovery removes.
        """
        self.log_start_offset = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.epochs.truncate_from_start(self.log_start_offset)
        gone: list[LogSegment] = []
        while len(self.segments) > 1 and self.segments[1].base_offset <= self.log_start_offset:
            gone.append(self.segments.pop(0))
        if gone:
            self.release_former_segments()
        return gone

    def release_former_segments(self) -> None:
        """Keeps no reference to segments that have left the log: the last response that sends one closes its file.

        The disk space of a file is free when it is closed, so that a log without appends must not keep any open.
        """
        segments = {id(segment) for segment in self.segments}
        self.tail_positions = {
            offset: found for offset, found in self.tail_positions.items() if id(found[0]) in segments
        }
        files = {id(segment.file) for segment in self.segments}
        indexes = {segment.aborted.path for segment in self.segments}
        self._unsynced = [
            one
            for one in self._unsynced
            if (one.path in indexes if isinstance(one, TxnIndex) else not isinstance(one, File) or id(one) in files)
        ]

    def ends_at(self, offset: int) -> None:
        """Its segments have been cut (`log_truncation.py`): what was known of the rest is forgotten."""
        self.log_end_offset = offset
        self.truncations += 1
        self.recovery_point = min(self.recovery_point, offset)
        self.has_changed = True
        self.tail_positions = {}
        self._due_snapshots.clear()
        self.release_former_segments()
        self._unsynced = [*self._unsynced, self.active.file]  # so that what was cut stays cut
        self._rounds_stale = max(self._rounds_out, 0)

    # Closing

    def checkpoint(self) -> None:
        """Write down what makes the next start short. None of it is needed for correctness."""
        for segment in self.segments[-1:]:
            segment.persist_indexes()

    def abandon(self) -> None:
        """The folder is being removed: hold on to no file, so that the last reply that sends one closes it."""
        self.segments = []
        self.tail_positions = {}
        self._unsynced = []
        self._due_snapshots.clear()
        self.mark = None  # a sync that begins later does not make the replica a held one again

    def close(self) -> None:
        """Everything to disk; after this nothing needs recovery."""
        self.trim_preallocation()
        if self.has_changed:
            work, end = self.unsynced()
            for item in work:
                item.sync()
            self.synced(end)
            self.active.seal()
            for item in self._seal_aborted():
                item.sync()
            self.write_producer_snapshot()
        elif self.producers.idle_ms():
            # Else a producer id never expires where every run of the broker is shorter than that takes.
            self.write_producer_snapshot(sync=False)
        self.epochs.flush()
        for segment in self.segments:
            segment.close()


def aborted_txn(ended: CompletedTxn) -> AbortedTxn:
    return AbortedTxn(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
