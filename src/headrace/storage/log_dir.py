"""A data directory: the partition folders in it, and the checkpoint files that speak of all of them.

meta.properties                       which cluster and which node this directory belongs to
.lock                                 held while a process uses it
recovery-point-offset-checkpoint      below these offsets everything is on disk
log-start-offset-checkpoint           below these offsets everything is deleted
replication-offset-checkpoint         high watermarks
.kafka_cleanshutdown                  the last process closed every log
.headrace_boot                        in which run of the machine it was
<topic>-<partition>/                  a partition
<topic>-<partition>.<uuid>-delete/    a partition on its way out
<topic>-<partition>.<uuid>-stray/     a partition that no topic claims; kept for a person to look at
"""

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

from headrace.model.configs import LogConfig
from headrace.model.errors import CorruptLog, StorageError
from headrace.model.ids import TopicPartition
from headrace.records.crc import crc32c
from headrace.storage import checkpoints
from headrace.storage.files import Durable, Files, NewFile, NewName
from headrace.storage.log import Log
from headrace.storage.partition_metadata import FILE_NAME as METADATA_FILE
from headrace.storage.partition_metadata import read_topic_id, write_topic_id
from headrace.storage.recovery import Checkpoint, open_log

log = logging.getLogger(__name__)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
# The row that tells a checkpoint as it was written from one with a flipped bit: a log start that is wrong by a digit
# would delete records. No topic can have this name, and Kafka passes over rows of topics that it does not know.
CHECKSUM_ROW = TopicPartition("#crc32c", 0)


class LogDir:
    """One directory, used by one process."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path.rstrip("/")
        files.make_dir(self.path)
        self._writing = threading.Lock()  # checkpoints are written from several threads, each file as a whole
        self._has_forgotten = False  # rows that the files still hold, of partitions that are gone
        self._recovery_points = self._read(checkpoints.RECOVERY_POINTS)
        self._log_starts = self._read(checkpoints.LOG_STARTS)
        self._cleaned = self._read(checkpoints.CLEANED)
        self._watermarks = self._read(checkpoints.HIGH_WATERMARKS)  # as they were at the last stop
        self._forget_absent()
        self.was_clean = checkpoints.clean_shutdown_epoch(files, self.path) is not None
        self._boot_before = checkpoints.boot_before(files, self.path)
        # From here on a crash is possible again.
        checkpoints.clear_clean_shutdown(files, self.path)

    def _named(self, name: str) -> str:
        return f"{self.path}/{name}"

    def claim(self, cluster_id: str, node_id: int, directory_id: UUID) -> UUID:
        """Make sure that the directory is ours; returns its id. A directory of another node is refused."""
        meta = checkpoints.read_meta_properties(self.files, self.path)
        if meta is None:
            # The directory's own name is an entry in the one above it.
            self.files.sync_dir(os.path.dirname(self.path) or ".")
            fresh = checkpoints.MetaProperties(cluster_id, node_id, directory_id)
            checkpoints.write_meta_properties(self.files, self.path, fresh)
            return directory_id
        self.check_owner(cluster_id, node_id)
        return meta.directory_id or directory_id

    def directory_id(self, fresh: UUID) -> UUID:
        """The id that this directory has, or will have: `fresh`."""
        meta = checkpoints.read_meta_properties(self.files, self.path)
        return fresh if meta is None else meta.directory_id or fresh

    def check_owner(self, cluster_id: str, node_id: int) -> None:
        """Raise if the directory is another node's; one that nobody has claimed is anybody's."""
        meta = checkpoints.read_meta_properties(self.files, self.path)
        if meta is not None and (meta.node_id != node_id or cluster_id not in ("", meta.cluster_id)):
            raise StorageError(
                f"{self.path} belongs to node {meta.node_id} of cluster {meta.cluster_id}, not to node {node_id} of "
                f"{cluster_id or 'a new cluster'}; use another data directory"
            )

    # Partition folders

    def folders(self) -> Iterator[tuple[TopicPartition, UUID | None]]:
        """Every partition folder with the topic id that it was made for."""
        for name in self.files.list(self.path):
            topic, _, index = name.rpartition("-")
            if topic and index.isdigit():
                yield TopicPartition(topic, int(index)), self._topic_id_of(name)

    def _topic_id_of(self, name: str) -> UUID | None:
        try:
            return read_topic_id(self.files, self._named(name))
        except StorageError as damage:
            log.error("%s", damage)
            return None

    def restore_topic_id(self, partition: TopicPartition, topic_id: UUID) -> None:
        write_topic_id(self.files, self._named(str(partition)), topic_id)

    def create(self, partition: TopicPartition, topic_id: UUID, config: LogConfig, *, now_ms: int) -> Log:
        """An empty partition. The first commit syncs its files and names: ten thousand folders cost no fsync now."""
        self._forget(partition)
        self.settle_forgotten()
        directory = self._named(str(partition))
        self.files.make_dir(directory)
        write_topic_id(self.files, directory, topic_id, sync=False)
        metadata = NewFile(self.files, f"{directory}/{METADATA_FILE}")
        names: list[Durable] = [metadata, NewName(self.files, self.path)]
        return Log.create(self.files, directory, config, now_ms=now_ms, unsynced=names)

    def open(self, partition: TopicPartition, config: LogConfig, *, now_ms: int) -> Log:
        checkpoint = Checkpoint(
            recovery_point=self._recovery_points.get(partition, 0),
            log_start_offset=self._log_starts.get(partition, 0),
            clean=self.was_clean,
        )
        return open_log(self.files, self._named(str(partition)), config, checkpoint, now_ms=now_ms)

    def set_aside(self, partition: TopicPartition, unique: UUID, suffix: str) -> str:
        """Rename the folder so that its name is free; returns the new path. The rename is the deletion's commit."""
        aside = self._named(f"{partition}.{unique.hex}{suffix}")
        self.files.rename(self._named(str(partition)), aside)
        self.files.sync_dir(self.path)
        self._forget(partition)
        return aside

    def _forget(self, partition: TopicPartition) -> None:
        self._watermarks.pop(partition, None)
        for offsets in (self._recovery_points, self._log_starts, self._cleaned):
            if offsets.pop(partition, None) is not None:
                self._has_forgotten = True

    def _forget_absent(self) -> None:
        folders = set(self.files.list(self.path))
        for offsets in (self._recovery_points, self._log_starts, self._cleaned):
            for partition in [one for one in offsets if str(one) not in folders]:
                self._forget(partition)

    def settle_forgotten(self) -> None:
        """No checkpoint speaks of a partition that is gone: the next one with its name starts from nothing."""
        if self._has_forgotten:
            self._has_forgotten = False
            self.write_recovery_points()
            self.write_log_starts()
            self.write_cleaned()

    def set_aside_before(self) -> list[str]:
        """Folders that an earlier process meant to remove and did not get to."""
        return [self._named(name) for name in self.files.list(self.path) if name.endswith(DELETE_SUFFIX)]

    # Checkpoints

    def note(self, partition: TopicPartition, partition_log: Log) -> None:
        self._recovery_points[partition] = partition_log.recovery_point
        if partition_log.log_start_offset > 0:
            # Also where a segment begins there: the files below it are removed later, and may come back after a crash.
            self._log_starts[partition] = partition_log.log_start_offset

    def write_recovery_points(self) -> None:
        self._write(checkpoints.RECOVERY_POINTS, self._recovery_points)

    def write_log_starts(self) -> None:
        self._write(checkpoints.LOG_STARTS, self._log_starts)

    def write_high_watermarks(self, watermarks: Iterable[tuple[TopicPartition, int]]) -> None:
        self._write(checkpoints.HIGH_WATERMARKS, dict(watermarks))

    def high_watermark_of(self, partition: TopicPartition) -> int:
        """As far as it was known at the last checkpoint."""
        return self._watermarks.get(partition, 0)

    def cleaned_to(self, partition: TopicPartition) -> int:
        """Up to where compaction has been."""
        return self._cleaned.get(partition, 0)

    def note_cleaned(self, partition: TopicPartition, offset: int) -> None:
        self._cleaned[partition] = offset

    def write_cleaned(self) -> None:
        self._write(checkpoints.CLEANED, self._cleaned)

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self._writing:
            rows = dict(offsets)  # in one step: the loop may go on changing them
            checkpoints.write_offsets(self.files, self._named(name), {**rows, CHECKSUM_ROW: _checksum(rows)})

    def _read(self, name: str) -> dict[TopicPartition, int]:
        """The rows, or none of them if one cannot be trusted: what they save is work, and what they hide is found."""
        try:
            rows = checkpoints.read_offsets(self.files, self._named(name))
            told = rows.pop(CHECKSUM_ROW, None)
            if told is not None and told != _checksum(rows):
                raise CorruptLog(f"{self._named(name)}: the checksum is wrong")
        except CorruptLog as damage:
            log.error("%s; going on without it: every log is checked, and deleted records may show up again", damage)
            return {}
        return rows

    @property
    def keeps_unsynced(self) -> bool:
        """Whether also what the last process had not synced is here: it was killed, perhaps, but the machine ran on."""
        return self._boot_before != "" and self._boot_before == self.files.boot_id()

    def note_boot(self) -> None:
        """From now on records are written.

        Not before everybody knows what the last process may have lost: else the next start would take it for there.
        """
        if not self.keeps_unsynced:
            checkpoints.write_boot(self.files, self.path, self.files.boot_id())

    def mark_clean(self) -> None:
        """Every log is closed: the next start trusts what it finds."""
        self.write_recovery_points()
        self.write_log_starts()
        checkpoints.mark_clean_shutdown(self.files, self.path)


def _checksum(rows: Mapping[TopicPartition, int]) -> int:
    return crc32c("\n".join(sorted(f"{topic} {index} {offset}" for (topic, index), offset in rows.items())).encode())
