"""A data directory: its partition directories, and the checkpoint files for all of them.

meta.properties                       cluster and node that own this directory
.lock                                 locked while a process uses it
recovery-point-offset-checkpoint      records below these offsets are synced
log-start-offset-checkpoint           records below these offsets are deleted
replication-offset-checkpoint         high watermarks
.kafka_cleanshutdown                  the last process closed every log
.headrace_boot                        boot id of the host under the last process
.headrace_registrations               how often the broker has registered, or stopped cleanly, with this directory
.headrace_replicas                    replicas that have had records in this directory
.headrace_unsynced                    topics with records that may have been acknowledged before they were synced
<topic>-<partition>/                  a partition
<topic>-<partition>.<uuid>-delete/    a partition that is being deleted
<topic>-<partition>.<uuid>-stray/     a partition without a topic in the metadata; see `stray_directories.py`
"""

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from uuid import UUID

from headrace.config.values import LogConfig
from headrace.model.errors import CorruptLog, PassingStorageError, StorageError
from headrace.model.ids import TopicPartition
from headrace.records.crc import crc32c
from headrace.storage.directory import checkpoint_files
from headrace.storage.directory.partition_metadata_file import FILE_NAME as METADATA_FILE
from headrace.storage.directory.partition_metadata_file import (
    has_segment,
    holds_partition,
    read_topic_id,
    write_topic_id,
)
from headrace.storage.directory.replica_inventory import ReplicaInventory
from headrace.storage.directory.stray_directories import DELETE_SUFFIX, AsideName, StrayTotals, parse_aside_name
from headrace.storage.directory.unflushed_topics import UnsyncedTopics
from headrace.storage.io.file_system import DirectorySync, Durable, FileSync, FileSystem
from headrace.storage.io.preallocation import always
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log

log = logging.getLogger(__name__)

LOCK = ".lock"
_PARTITION_NAME = re.compile(r"([A-Za-z0-9._-]+)-(0|[1-9][0-9]*)")
# Row with the checksum of a checkpoint: a flipped digit in a log start offset would delete records. No topic can have
# this name, and Kafka skips rows of unknown topics.
CHECKSUM_ROW = TopicPartition("#crc32c", 0)


class _Unwritten:
    """Counts changes in memory and those that are durable. A write covers the changes made before it began."""

    def __init__(self) -> None:
        self._made = self._durable = 0

    def add(self) -> None:
        self._made += 1

    def begin_write(self) -> int:
        return self._made

    def end_write(self, begun: int) -> None:
        self._durable = max(self._durable, begun)

    def __bool__(self) -> bool:
        return self._durable < self._made


class LogDirectory:
    """One directory, used by one process."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self.files = files
        self.path = path.rstrip("/")
        files.make_dir(self.path)
        self.may_preallocate: Callable[[int], bool] = always  # called by every log before it preallocates
        self._writing = threading.Lock()  # serializes the threads that write checkpoints, each file as a whole
        self._lowered = _Unwritten()  # rows that were removed or lowered
        self._renamed = _Unwritten()  # directories that were renamed
        self.strays = StrayTotals(0, 0)  # as of the last scan
        self._recovery_points = self._read(checkpoint_files.RECOVERY_POINTS)
        self._log_starts = self._read(checkpoint_files.LOG_STARTS)
        self._cleaned = self._read(checkpoint_files.CLEANED)
        self._watermarks = self._read(checkpoint_files.HIGH_WATERMARKS)
        self._checkpoints = (self._recovery_points, self._log_starts, self._cleaned, self._watermarks)
        self._named_before = frozenset(one for rows in self._checkpoints for one, offset in rows.items() if offset > 0)
        self._forget_absent()
        self.replicas = ReplicaInventory(files, self.path)
        self.was_clean = checkpoint_files.clean_shutdown_epoch(files, self.path) is not None
        self._boot_before = checkpoint_files.boot_before(files, self.path)
        self._is_kafkas = not files.exists(self._named(checkpoint_files.BOOT))
        self.registrations = self._registrations()
        self.is_closed_cleanly = False  # by this process
        self.is_recovered = self.was_clean or self.same_boot_as_last_run  # whether `end_recovery` has nothing to do
        self.unsynced_topics = UnsyncedTopics(files, self.path)
        self.acked_unsynced_before = self.unsynced_topics.as_recorded()  # by the last process
        # Makes durable what a crashed process left unsynced: the next start must read what this one reads.
        files.sync_dir(self.path)

    def _named(self, name: str) -> str:
        return f"{self.path}/{name}"

    def claim(self, cluster_id: str, node_id: int, directory_id: UUID) -> UUID:
        """Claims the directory for this node and returns its id. Raises StorageError if it belongs to another node."""
        meta = checkpoint_files.read_meta_properties(self.files, self.path)
        if meta is None:
            # The name of this directory is an entry of its parent.
            self.files.sync_dir(os.path.dirname(self.path) or ".")
            fresh = checkpoint_files.MetaProperties(cluster_id, node_id, directory_id)
            checkpoint_files.write_meta_properties(self.files, self.path, fresh)
            return directory_id
        self.check_owner(cluster_id, node_id)
        return meta.directory_id or directory_id

    def directory_id(self, fresh: UUID) -> UUID:
        """Returns the id of this directory, or `fresh` if it has none yet."""
        meta = checkpoint_files.read_meta_properties(self.files, self.path)
        return fresh if meta is None else meta.directory_id or fresh

    def check_owner(self, cluster_id: str, node_id: int) -> None:
        """Raises StorageError if the directory belongs to another node; a directory without an owner is accepted."""
        meta = checkpoint_files.read_meta_properties(self.files, self.path)
        if meta is not None and (meta.node_id != node_id or cluster_id not in ("", meta.cluster_id)):
            raise StorageError(
                f"{self.path} belongs to node {meta.node_id} of cluster {meta.cluster_id}, not to node {node_id} of "
                f"{cluster_id or 'a new cluster'}; use another data directory"
            )

    # Partition directories

    def folders(self) -> Iterator[tuple[TopicPartition, UUID | None]]:
        """Yields every directory with the name of a partition, and its topic id; see also `is_partition`."""
        for name in self.files.list(self.path):
            found = _PARTITION_NAME.fullmatch(name)
            if found is not None:
                partition = TopicPartition(found[1], int(found[2]))
                yield partition, self.topic_id_of(partition)

    def is_partition(self, name: TopicPartition) -> bool:
        """Returns whether the directory of this name was created for a partition.

        Raises StorageError if it cannot be read.
        """
        return holds_partition(self.files.list(self._named(str(name))))

    def has_segments(self, name: TopicPartition) -> bool:
        """Returns whether the partition's directory has a segment; True also if the directory cannot be read."""
        directory = self._named(str(name))
        try:
            return self.files.exists(directory) and has_segment(self.files.list(directory))
        except (StorageError, OSError):
            return True

    def was_named(self, name: TopicPartition) -> bool:
        """Returns whether a checkpoint had an offset above 0 for the partition when this process began."""
        return name in self._named_before

    def topic_id_of(self, partition: TopicPartition) -> UUID | None:
        """Returns the topic id of the partition's directory; None if it cannot be read."""
        try:
            return read_topic_id(self.files, self._named(str(partition)))
        except StorageError as damage:
            log.error("%s", damage)
            return None

    def restore_topic_id(self, partition: TopicPartition, topic_id: UUID, *, sync: bool = True) -> None:
        write_topic_id(self.files, self._named(str(partition)), topic_id, sync=sync)

    def create(self, partition: TopicPartition, topic_id: UUID, config: LogConfig, *, now_ms: int) -> Log:
        """Creates an empty partition.

        The first commit syncs its files and names: ten thousand of them need no fsync here.

        Raises StorageError if the directory exists: its checkpoint rows describe its content. The rows of the name
        are removed before the directory is created, because a crash in between would leave both.
        """
        directory = self._named(str(partition))
        if self.files.exists(directory):
            raise StorageError(f"{directory} exists already")
        self._forget(partition)
        self.flush_forgotten_checkpoints()
        self.files.make_dir(directory)
        write_topic_id(self.files, directory, topic_id, sync=False)
        metadata = FileSync(self.files, f"{directory}/{METADATA_FILE}")
        names: list[Durable] = [metadata, DirectorySync(self.files, self.path)]
        return self._preallocating(Log.create(self.files, directory, config, now_ms=now_ms, unsynced=names))

    def open(self, partition: TopicPartition, config: LogConfig, *, now_ms: int) -> Log:
        checkpoint = Checkpoint(
            recovery_point=self._recovery_points.get(partition, 0),
            log_start_offset=self._log_starts.get(partition, 0),
            clean=self.was_clean,
            same_boot_as_last_run=self.same_boot_as_last_run,
            is_kafkas=self._is_kafkas,
        )
        return self._preallocating(open_log(self.files, self._named(str(partition)), config, checkpoint, now_ms=now_ms))

    def _preallocating(self, opened: Log) -> Log:
        opened.room.may_take = self.may_preallocate
        return opened

    def set_aside(self, partition: TopicPartition, unique: UUID, suffix: str) -> str:
        """Renames the partition directory so that its name is free; returns the new path.

        The rename commits the deletion, and is durable after `flush_forgotten_checkpoints`.
        """
        aside = self._named(str(AsideName(partition, unique, suffix)))
        self.files.rename(self._named(str(partition)), aside)
        self._renamed.add()
        self._forget(partition)
        return aside

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Removes the checkpoint rows of partitions that will be created.

        The change is durable after `flush_forgotten_checkpoints`.
        """
        for partition in partitions:
            self._forget(partition)

    def lower(self, partition: TopicPartition, offset: int) -> None:
        """Lowers the partition's checkpoint rows to `offset`, its new log end.

        The change is durable after `flush_forgotten_checkpoints`.

        A row above the log end would apply to the records that are appended next: it would mark them as synced,
        deleted, compacted or committed.
        """
        for offsets in self._checkpoints:
            self._lower(offsets, partition, offset)

    def opened_to(self, partition: TopicPartition, end_offset: int) -> None:
        """Lowers rows above the end of a log that was opened: they describe records that the log no longer has.

        A recovery point or log start above the end is kept. It states which offsets were assigned before.
        """
        self._lower(self._watermarks, partition, end_offset)
        self._lower(self._cleaned, partition, end_offset)

    def _lower(self, offsets: dict[TopicPartition, int], partition: TopicPartition, offset: int) -> None:
        if offsets.get(partition, 0) > offset:
            offsets[partition] = offset
            self._lowered.add()

    @property
    def is_settled(self) -> bool:
        """Returns whether `flush_forgotten_checkpoints` has nothing to do."""
        return not (self._lowered or self._renamed) and self.replicas.is_settled

    def _forget(self, partition: TopicPartition) -> None:
        for offsets in self._checkpoints:
            if offsets.pop(partition, None) is not None:
                self._lowered.add()

    def _forget_absent(self) -> None:
        folders = set(self.files.list(self.path))
        for partition in {one for offsets in self._checkpoints for one in offsets if str(one) not in folders}:
            self._forget(partition)

    def flush_forgotten_checkpoints(self) -> None:
        """Writes the checkpoints. Afterwards none on disk has a row that was removed or lowered before the call.

        A row has no topic id. It belongs to the directory of its name, because the row of a former directory is
        durably removed before a directory of that name is created.

        Blocks on the disk: a serving broker calls it in a thread, once for all partitions of a change.
        """
        if self._renamed:
            begun = self._renamed.begin_write()
            self.files.sync_dir(self.path)
            self._renamed.end_write(begun)
        if self._lowered:
            begun = self._lowered.begin_write()
            self.write_recovery_points()
            self.write_log_starts()
            self.write_cleaned()
            self.write_high_watermarks()
            self._lowered.end_write(begun)
        if not self.replicas.is_settled:
            self.replicas.write()

    def set_aside_before(self) -> list[str]:
        """Returns the directories whose deletion an earlier process did not complete."""
        names = [parse_aside_name(name) for name in self.files.list(self.path)]
        return [self._named(str(name)) for name in names if name is not None and name.suffix == DELETE_SUFFIX]

    # Checkpoints

    def note(self, partition: TopicPartition, partition_log: Log) -> None:
        self._recovery_points[partition] = partition_log.recovery_point
        if partition_log.log_start_offset > 0:
            # Also if a segment begins there: the files below it are removed later, and may reappear after a crash.
            self._log_starts[partition] = partition_log.log_start_offset

    def write_recovery_points(self) -> None:
        self._write(checkpoint_files.RECOVERY_POINTS, self._recovery_points)

    def write_log_starts(self) -> None:
        self._write(checkpoint_files.LOG_STARTS, self._log_starts)

    def write_log_starts_on_full_disk(self) -> None:
        """As `write_log_starts`, in the disk space of the high watermark checkpoint, which is rewritten afterwards.

        Log starts cannot be derived from the logs: without them a crash would restore deleted records. A high
        watermark can be derived, and is written at the next interval or stop if the disk is full now.
        """
        with suppress(FileNotFoundError):
            self.files.remove(self._named(checkpoint_files.HIGH_WATERMARKS))
        self.write_log_starts()
        try:
            self.write_high_watermarks()
        except StorageError as error:
            log.warning("High watermarks not written: %s", error)

    def note_high_watermark(self, partition: TopicPartition, offset: int) -> None:
        self._watermarks[partition] = offset

    def write_high_watermarks(self) -> None:
        self._write(checkpoint_files.HIGH_WATERMARKS, self._watermarks)

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return dict(self._watermarks)

    def high_watermark_of(self, partition: TopicPartition) -> int:
        """Returns the high watermark of the last checkpoint; the log may end below."""
        return self._watermarks.get(partition, 0)

    def cleaned_to(self, partition: TopicPartition) -> int:
        """Returns the offset up to which the partition is compacted."""
        return self._cleaned.get(partition, 0)

    def note_cleaned(self, partition: TopicPartition, offset: int) -> None:
        self._cleaned[partition] = offset

    def write_cleaned(self) -> None:
        self._write(checkpoint_files.CLEANED, self._cleaned)

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self._writing:
            rows = dict(offsets)  # copied in one step: the event loop may change the original concurrently
            checkpoint_files.write_offsets(self.files, self._named(name), {**rows, CHECKSUM_ROW: _checksum(rows)})

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """Returns the rows, or none if one is corrupt: recovery derives what they contain, at the cost of more work."""
        try:
            rows = checkpoint_files.read_offsets(self.files, self._named(name))
            told = rows.pop(CHECKSUM_ROW, None)
            if told is not None and told != _checksum(rows):
                raise CorruptLog(f"{self._named(name)}: the checksum is wrong")
        except CorruptLog as damage:
            log.error("%s; continuing without it: every log is checked, and deleted records may reappear", damage)
            return {}
        return rows

    @property
    def same_boot_as_last_run(self) -> bool:
        """Returns whether unsynced writes of the last process are still there.

        The process may have crashed, but the host kept running.
        """
        return self._boot_before != "" and self._boot_before == self.files.boot_id()

    @property
    def incarnation(self) -> str:
        """Id of this start: of two processes with the same incarnation, the earlier one has ended. Empty if unknown.

        Both locked this directory, on this host, since it booted. A copy of the directory has another lock file, and
        a copy of the disk is used by a host with another boot id.
        """
        boot, lock = self.files.boot_id(), self.files.identity(self._named(LOCK))
        return f"{boot} {lock}" if boot and lock else ""

    def _registrations(self) -> int:
        try:
            return checkpoint_files.read_registrations(self.files, self.path)
        except CorruptLog as damage:
            log.error("%s; treating the data directory as an older copy", damage)
            return 0

    def count_registration(self, known: int) -> int:
        """Raises the count in this directory above `known`, the count in the metadata; returns the count on disk.

        Called before the registration with that count is committed. A count below the metadata's then means that an
        older copy has replaced this directory. A count above it means that a start failed before its commit.
        """
        count = max(self.registrations, known) + 1
        try:
            checkpoint_files.write_registrations(self.files, self.path, count)
            self.registrations = count
        except PassingStorageError as error:
            log.warning(
                "Registration not counted; an older copy of the data directory might not be detected: %s", error
            )
        return self.registrations

    def begin_writing(self) -> None:
        """Clears the clean shutdown mark. Called once, before the first change of a partition.

        Called after the registration is committed: a start that fails until then leaves the directory as it was,
        clean or unclean. Afterwards the metadata records what an unclean stop may have lost. After a clean shutdown,
        the boot id is written first. A crash between the two writes would otherwise look like a host restart that
        lost unsynced records.
        """
        if self.was_clean and not self.same_boot_as_last_run:
            self._write_boot()
        checkpoint_files.clear_clean_shutdown(self.files, self.path)

    def end_recovery(self) -> None:
        """Records the end of recovery.

        Called when every log has been opened and synced. Repeated calls have no effect.

        A process that crashes earlier leaves logs as the host restart before it left them. The next start must not
        expect their unsynced records, nor treat a partial write in them as corruption.
        """
        if not self.is_recovered:
            self._write_boot()
            self.is_recovered = True

    def _write_boot(self) -> None:
        try:
            checkpoint_files.write_boot(self.files, self.path, self.files.boot_id())
        except PassingStorageError as error:
            # Safe without it: after a crash, the next start assumes that unsynced records are lost.
            log.warning("Boot id not written; a crash before the next restart counts as a host restart: %s", error)

    def mark_clean(self) -> None:
        """Writes the clean shutdown mark. Called when every log is closed; the next start skips recovery."""
        self.write_recovery_points()
        self.write_log_starts()
        checkpoint_files.mark_clean_shutdown(self.files, self.path)
        self.is_closed_cleanly = True


def _checksum(rows: Mapping[TopicPartition, int]) -> int:
    return crc32c("\n".join(sorted(f"{topic} {index} {offset}" for (topic, index), offset in rows.items())).encode())
