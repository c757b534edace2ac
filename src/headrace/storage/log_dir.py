"""A data directory: the partition folders in it, and the checkpoint files that speak of all of them.

meta.properties                       which cluster and which node this directory belongs to
.lock                                 held while a process uses it
recovery-point-offset-checkpoint      below these offsets everything is on disk
log-start-offset-checkpoint           below these offsets everything is deleted
replication-offset-checkpoint         high watermarks
.kafka_cleanshutdown                  the last process closed every log
<topic>-<partition>/                  a partition
<topic>-<partition>.<uuid>-delete/    a partition on its way out
<topic>-<partition>.<uuid>-stray/     a partition that no topic claims; kept for a person to look at
"""

import logging
from collections.abc import Iterable, Iterator
from uuid import UUID

from headrace.model.configs import LogConfig
from headrace.model.errors import CorruptLog, StorageError
from headrace.model.ids import TopicPartition
from headrace.storage import checkpoints
from headrace.storage.files import Durable, Files, NewFile, NewName
from headrace.storage.log import Log
from headrace.storage.partition_metadata import FILE_NAME as METADATA_FILE
from headrace.storage.partition_metadata import read_topic_id, write_topic_id
from headrace.storage.recovery import Checkpoint, open_log

log = logging.getLogger(__name__)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"


class LogDir:
    """One directory, used by one process."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path.rstrip("/")
        files.make_dir(self.path)
        self._recovery_points = checkpoints.read_offsets(files, self._named(checkpoints.RECOVERY_POINTS))
        self._log_starts = checkpoints.read_offsets(files, self._named(checkpoints.LOG_STARTS))
        self._cleaned = checkpoints.read_offsets(files, self._named(checkpoints.CLEANED))
        self.was_clean = checkpoints.clean_shutdown_epoch(files, self.path) is not None
        # From here on a crash is possible again.
        checkpoints.clear_clean_shutdown(files, self.path)

    def _named(self, name: str) -> str:
        return f"{self.path}/{name}"

    def claim(self, cluster_id: str, node_id: int, directory_id: UUID) -> UUID:
        """Make sure that the directory is ours; returns its id. A directory of another node is refused."""
        meta = checkpoints.read_meta_properties(self.files, self.path)
        if meta is None:
            fresh = checkpoints.MetaProperties(cluster_id, node_id, directory_id)
            checkpoints.write_meta_properties(self.files, self.path, fresh)
            return directory_id
        if meta.cluster_id != cluster_id or meta.node_id != node_id:
            raise StorageError(
                f"{self.path} belongs to node {meta.node_id} of cluster {meta.cluster_id}, not to node {node_id} of "
                f"{cluster_id}; use another data directory"
            )
        return meta.directory_id or directory_id

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
        except CorruptLog as damage:
            log.error("%s", damage)
            return None

    def create(self, partition: TopicPartition, topic_id: UUID, config: LogConfig, *, now_ms: int) -> Log:
        """An empty partition. The first commit syncs its files and names: ten thousand folders cost no fsync now."""
        directory = self._named(str(partition))
        self.files.make_dir(directory)
        write_topic_id(self.files, directory, topic_id, sync=False)
        metadata = NewFile(self.files, f"{directory}/{METADATA_FILE}")
        names: list[Durable] = [metadata, NewName(self.files, self.path)]
        created = Log.create(self.files, directory, config, now_ms=now_ms, unsynced=names)
        self._forget(partition)
        return created

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
        for offsets in (self._recovery_points, self._log_starts, self._cleaned):
            offsets.pop(partition, None)

    def set_aside_before(self) -> list[str]:
        """Folders that an earlier process meant to remove and did not get to."""
        return [self._named(name) for name in self.files.list(self.path) if name.endswith(DELETE_SUFFIX)]

    # Checkpoints

    def note(self, partition: TopicPartition, partition_log: Log) -> None:
        self._recovery_points[partition] = partition_log.recovery_point
        if partition_log.log_start_offset > partition_log.segments[0].base_offset:
            self._log_starts[partition] = partition_log.log_start_offset
        else:
            self._log_starts.pop(partition, None)

    def write_recovery_points(self) -> None:
        path = self._named(checkpoints.RECOVERY_POINTS)
        checkpoints.write_offsets(self.files, path, dict(self._recovery_points))

    def write_log_starts(self) -> None:
        checkpoints.write_offsets(self.files, self._named(checkpoints.LOG_STARTS), dict(self._log_starts))

    def write_high_watermarks(self, watermarks: Iterable[tuple[TopicPartition, int]]) -> None:
        checkpoints.write_offsets(self.files, self._named(checkpoints.HIGH_WATERMARKS), dict(watermarks))

    def cleaned_to(self, partition: TopicPartition) -> int:
        """Up to where compaction has been."""
        return self._cleaned.get(partition, 0)

    def note_cleaned(self, partition: TopicPartition, offset: int) -> None:
        self._cleaned[partition] = offset

    def write_cleaned(self) -> None:
        checkpoints.write_offsets(self.files, self._named(checkpoints.CLEANED), dict(self._cleaned))

    def mark_clean(self) -> None:
        """Every log is closed: the next start trusts what it finds."""
        self.write_recovery_points()
        self.write_log_starts()
        checkpoints.mark_clean_shutdown(self.files, self.path)
