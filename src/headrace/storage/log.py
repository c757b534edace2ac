"""The log of one partition: segments, producer states and leader epochs, updated together.

Appends and lookups are synchronous and independent of requests. The log distinguishes records that are *written* from
records that are *synced*: `unsynced` returns the files that need a sync, and `synced` reports that the sync has
ended. Other modules open a log (`log_loader.py`), append coalesced and replicated batches (`log_append.py`), read
(`log_read.py`, `timestamp_lookup.py`), truncate (`log_truncation.py`), select segments to delete (`log_retention.py`)
and compact (`storage/cleaner/cleaner.py`).
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

# Positions of the ends of recent batches. Consumers at the log end and the high watermark request exactly these
# offsets, so that they need no index lookup. More than the batches of one group commit, few enough for 10,000
# partitions.
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
        self.recovery_point = recovery_point  # every record below is synced
        self.producers = producers
        self.epochs = epochs
        for segment in segments:
            segment.epochs = epochs
        self.holes = holes or []  # unreadable offset ranges that have no bytes in any segment
        # Most logs have no aborted transactions, so that their fetches skip the lookup.
        self.has_aborted = any(name.endswith(".txnindex") for name in files.list(directory))
        self._unsynced: list[Durable] = unsynced or []
        self._rounds_out = 0  # syncs that were started by `unsynced` and have not been reported to `synced`
        self._rounds_stale = 0  # those of them that began before the last truncation
        self.truncations = 0  # stepwise work on inactive segments is discarded if this number has changed
        self.has_changed = False  # since it was opened; an unchanged log is closed without a write
        self.tail_positions: dict[int, tuple[LogSegment, int]] = {}
        self.room = Preallocator()
        self._due_snapshots = DueSnapshots(files, directory)
        self.rebuilder: Rebuilder | None = None
        self.mark: ReplicaMark | None = None  # records that the replica has data, once the first records are synced

    @classmethod
    def create(
        cls, files: FileSystem, directory: str, config: LogConfig, *, now_ms: int, unsynced: list[Durable] | None = None
    ) -> "Log":
        """Creates an empty log. It is durable after the first sync, which includes `unsynced`."""
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
        """Delegates index rebuilds of large segments to `rebuilder`. Called before an event loop uses the log."""
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
        """Assigns offsets to a validated batch and writes it. A duplicate returns the offsets of its first append."""
        if header.producer_id >= 0:
            written_at = self.producers.check(header)
            if written_at is not None:
                return LogAppendInfo(written_at, written_at + header.last_offset_delta + 1, duplicate=True)
        return self._write(batch, header, leader_epoch, now_ms)

    def append_for_producer(
        self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> LogAppendInfo:
        """Appends a batch that a coordinator writes in a producer's transaction. It has an epoch and no sequence."""
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
        """Appends the marker that ends a producer's transaction. It takes one offset."""
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
        """Adds the leader epoch that begins with the next batch.

        Called before the batch is written, because this can fail: the next epoch replaces one without records, but a
        batch must not be in the log without its epoch. The next sync writes the epoch to disk before the batch.
        """
        self.flush_before_next(self.epochs.assign(epoch, start_offset))
        self.has_changed = True

    def write_marker(self, segment: LogSegment, batch: Bytes, header: BatchHeader, marker: "EndMarker") -> None:
        """Writes the marker and, for an abort, its `.txnindex` entry: both, or neither and raises StorageError.

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
        """Advances the log end past a batch that the segment and the producer states include."""
        next_offset = segment.next_offset
        self.grown_to(next_offset, segment)
        return LogAppendInfo(header.base_offset, next_offset, duplicate=False)

    def grown_to(self, offset: int, segment: LogSegment) -> None:
        """Sets the log end after an append to `segment`, and marks the segment's file as unsynced."""
        self.log_end_offset = offset
        self.has_changed = True
        ends = self.tail_positions
        ends[offset] = (segment, segment.file.size)
        if len(ends) > RECENT_ENDS_MAX:
            del ends[next(iter(ends))]
        if not self._unsynced or self._unsynced[-1] is not segment.file:
            self._unsynced.append(segment.file)

    def segment_for(self, header: BatchHeader, now_ms: int) -> LogSegment:
        """Returns the active segment; rolls a new one first if the batch does not fit or the segment is old enough."""
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
        """Compares record timestamps where there are any, so that replayed history rolls as it did originally."""
        age = timestamp - segment.first_timestamp if segment.first_timestamp >= 0 else now_ms - segment.opened_ms
        limit_ms = self.config.segment_ms
        if self.config.compacts:
            # Only inactive segments are compacted, so a record must leave the active segment within the compaction lag.
            limit_ms = min(limit_ms, self.config.max_compaction_lag_ms)
        if self.config.segment_jitter_ms:
            # The jitter is derived from the segment's path, so that repeated calls return the same value.
            limit_ms -= crc32c(segment.path.encode()) % min(self.config.segment_jitter_ms, limit_ms)
        return age > limit_ms

    def roll(self, now_ms: int) -> LogSegment:
        """Closes the active segment and starts one at the log end.

        The event loop waits for no disk here: the next sync includes the directory, before it reports anything in the
        new segment as synced. Recovery skips a snapshot that a power loss has torn and uses the one before it.
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
        # Nothing may fail from here on: an empty file that is not in `segments` would remain among longer segments.
        self._snapshot_after(self._seal_aborted())
        self._unsynced.append(DirectorySync(self.files, self.directory))
        fresh.epochs, fresh.rebuilder = self.epochs, self.rebuilder
        self.segments.append(fresh)
        return fresh

    def trim_preallocation(self) -> None:
        """Truncates the preallocated tail of the active segment; durable with the next sync."""
        file = self.active.file
        if not file.trim_preallocation():
            return
        self.has_changed = True
        if file not in self._unsynced:
            self._unsynced.append(file)

    def _seal_aborted(self) -> list[Durable]:
        """Closes the transaction indexes and returns those that must be synced before a producer snapshot is written.

        They include the indexes of older segments that recovery or a truncation has rewritten.
        """
        return [unsynced for segment in self.segments for unsynced in segment.aborted.seal()]

    def _snapshot_after(self, aborted: list[Durable]) -> None:
        """Writes the producer snapshot at the log end, after `aborted` is synced.

        While a snapshot waits for an index, all later snapshots wait, because they depend on the same index.
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
        """Adds `work` to the next sync, before the records."""
        self._unsynced = [*work, *self._unsynced]

    def take_unflushed(self) -> tuple[list[Durable], int]:
        """Returns `unsynced` for one of many syncs. Preallocates a tail if small syncs are frequent."""
        if self.segments:  # else the log was abandoned after it became dirty
            self.room.round_begins(self.active.base_offset, self.active.file, self.config.segment_bytes)
        return self.unsynced()

    def unsynced(self) -> tuple[list[Durable], int]:
        """Returns what to sync, and the offset below which every record is durable afterwards.

        The caller owns the sync.
        """
        work, self._unsynced = self._unsynced, []
        if self.mark is not None and self.log_end_offset > 0 and not self.mark.is_made:
            work.append(self.mark.begin())
        self._rounds_out += 1
        return work, self.log_end_offset

    def synced(self, offset: int) -> bool:
        """Records the end of a sync, in the order of `unsynced`.

        Returns False for a sync that began before a truncation.
        """
        self._rounds_out -= 1
        if self._rounds_stale:
            self._rounds_stale -= 1
            return False
        self.recovery_point = max(self.recovery_point, offset)
        if self._due_snapshots:
            self._unsynced += self._due_snapshots.write()
        return True

    def truncate_unflushed(self) -> list[Durable]:
        """Drops records that are not known to be durable, after a failed sync.

        Returns what must be synced to keep them so.

        The kernel has marked their pages as clean. The next start would read them from the page cache, treat them as
        written, and lose them at the next power loss.
        """
        end = self.recovery_point
        # the partition goes offline, so the truncation must not be delayed by a rebuild in a thread
        self.active.rebuilder = None
        while len(self.segments) > 1 and self.segments[-1].base_offset >= end:
            remove_segment_files(self.files, self.segments.pop())
        if self.active.next_offset > end:
            self.active.truncate(self.active.translate_offset(end) if end > self.active.base_offset else 0, end)
        self.log_end_offset = end
        self._unsynced, self.tail_positions = [], {}
        self._due_snapshots.clear()
        # The sync makes the truncation durable: otherwise the records could reappear after a start that did not have
        # them.
        return [DirectorySync(self.files, self.directory), self.active.file]

    def write_unsynced_again(self) -> None:
        """Rewrites acknowledged records after a failed sync, so that a sync after the next start writes them to disk.

        The kernel has marked their pages as clean, so that sync would succeed without writing them.
        """
        for segment in self.segments:
            if segment.next_offset > self.recovery_point:
                segment.file.write_again()

    # Reading: see `log_read.py`; lookup by timestamp: `timestamp_lookup.py`

    def read(self, offset: int, bytes_max: int, limit: int) -> FileRecords | None:
        return read(self, offset, bytes_max, limit)

    def aborted_transactions(self, offset: int, records: FileRecords) -> list[AbortedTxn]:
        return aborted_transactions(self, offset, records)

    # Truncating

    def advance_log_start(self, offset: int) -> list[LogSegment]:
        """Advances the log start to `offset`. Returns the segments that are removed from the log.

        The caller removes their files, oldest first and off the event loop. A crash in between leaves segments below
        the checkpointed log start, which recovery removes.
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
        """Drops the references to segments that have left the log: the last response that sends a file closes it.

        The file system frees the space of a file when it is closed, so that a log without appends must not keep any
        open.
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
        """Sets the log end after `log_truncation.py` has truncated the segments, and drops all state above it."""
        self.log_end_offset = offset
        self.truncations += 1
        self.recovery_point = min(self.recovery_point, offset)
        self.has_changed = True
        self.tail_positions = {}
        self._due_snapshots.clear()
        self.release_former_segments()
        self._unsynced = [*self._unsynced, self.active.file]  # makes the truncation durable
        self._rounds_stale = max(self._rounds_out, 0)

    # Closing

    def checkpoint(self) -> None:
        """Persists the indexes of the active segment.

        They make the next start faster; correctness does not depend on them.
        """
        for segment in self.segments[-1:]:
            segment.persist_indexes()

    def abandon(self) -> None:
        """Closes the log without a write, because its directory is being removed. Keeps no file open."""
        self.segments = []
        self.tail_positions = {}
        self._unsynced = []
        self._due_snapshots.clear()
        self.mark = None  # so that a sync that begins later does not mark the replica as one with records again

    def close(self) -> None:
        """Syncs and closes the log. A log that was closed needs no recovery."""
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
            # Otherwise the producer ids would never expire if each run of the broker is shorter than their expiration
            # time.
            self.write_producer_snapshot(sync=False)
        self.epochs.flush()
        for segment in self.segments:
            segment.close()


def aborted_txn(ended: CompletedTxn) -> AbortedTxn:
    return AbortedTxn(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
