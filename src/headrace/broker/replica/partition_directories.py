"""Partition directories of this broker: which topic each belongs to; opening, creating and discarding them.

Failures are not raised to the caller. A partition whose directory cannot be used is offline by itself; the other
partitions of the same change are processed.
"""

import logging
from collections.abc import Iterable
from uuid import UUID, uuid4

from headrace.broker.replica.file_deleter import FileDeleter
from headrace.config.values import LogConfig
from headrace.model.clock import Clock
from headrace.model.errors import StorageError
from headrace.model.ids import TopicPartition
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.directory.partition_metadata_file import uuid_to_text
from headrace.storage.directory.replica_inventory import ReplicaId
from headrace.storage.directory.stray_directories import DELETE_SUFFIX, STRAY_SUFFIX
from headrace.storage.log import Log

log = logging.getLogger(__name__)


class PartitionDirectories:
    def __init__(self, log_dir: LogDirectory, clock: Clock, removals: FileDeleter) -> None:
        self._log_dir = log_dir
        self._clock = clock
        self._removals = removals
        # Claimed at the start and not opened yet; their topic ids are checked.
        self._claimed: set[TopicPartition] = set()
        # Directories that could not be renamed, with the suffix they are to get. Their names are not free.
        self._unrenamed: dict[TopicPartition, str] = {}
        self._unwritten_ids: dict[TopicPartition, UUID] = {}  # topic ids that could not be rewritten

    def exists(self, name: TopicPartition) -> bool:
        """Returns whether the directory exists; True on a disk error, so that the next operation reports it."""
        try:
            return self._log_dir.files.exists(f"{self._log_dir.path}/{name}")
        except StorageError as error:
            log.error("%s", error)
            return True

    # Topic ids

    def claim(self, name: TopicPartition, found: UUID | None, topic_id: UUID, deleted: Iterable[UUID] = ()) -> bool:
        """Returns whether the directory with the topic id `found` belongs to the topic. A corrupt id is rewritten.

        An id that is unreadable or differs by one character is treated as a bit flip. This is safe: a deleted topic's
        directory is renamed before its name is reused, and a failed rename is remembered.
        """
        if found != topic_id:
            if found is not None and (found in deleted or not _differ_by_one_character(found, topic_id)):
                return False
            log.error("The topic id in the directory of %s is corrupt; writing it again", name)
            try:
                self._log_dir.restore_topic_id(name, topic_id)
            except StorageError as error:
                log.error("Topic id of %s not written; retrying later: %s", name, error)
                self._unwritten_ids[name] = topic_id
        self._claimed.add(name)
        return True

    def write_topic_ids(self) -> None:
        """Retries the topic ids that could not be written.

        Call on the event loop, where no directory is renamed in between. Does not wait for the disk: after a power
        loss, an id may be as unreadable as before; the next start corrects it.
        """
        for name, topic_id in list(self._unwritten_ids.items()):
            try:
                self._log_dir.restore_topic_id(name, topic_id, sync=False)
            except StorageError:
                continue  # logged at the first failure
            self._unwritten_ids.pop(name, None)
            log.warning("Topic id of %s written", name)

    def _is_of(self, name: TopicPartition, topic_id: UUID) -> bool:
        if name in self._unrenamed:
            return False
        return name in self._claimed or self.claim(name, self._log_dir.topic_id_of(name), topic_id)

    # Opening and creating

    def open_or_create(self, name: TopicPartition, topic_id: UUID, config: LogConfig) -> Log | StorageError:
        """Returns the partition's log, or the error that makes it unusable.

        A directory of another topic, left by a failed deletion, is renamed first: its records do not belong to this
        topic, and records appended to it would be lost at the next start.
        """
        try:
            if self.exists(name):
                if self._is_of(name, topic_id):
                    self._claimed.discard(name)
                    return self._marking(name, topic_id, self._log_dir.open(name, config, now_ms=self._clock.wall_ms()))
                if not self._log_dir.is_partition(name):
                    raise StorageError(f"{self._log_dir.path}/{name} is not a partition directory")
                self._rename(name, self._unrenamed.get(name, STRAY_SUFFIX))
            created = self._log_dir.create(name, topic_id, config, now_ms=self._clock.wall_ms())
            return self._marking(name, topic_id, created)
        except StorageError as error:
            error.__cause__ = error.__context__ = None  # tracebacks would keep the files of the failed attempt open
            return error.with_traceback(None)

    def _marking(self, name: TopicPartition, topic_id: UUID, opened: Log) -> Log:
        opened.mark = self._log_dir.replicas.mark(ReplicaId(topic_id, name.partition))
        return opened

    # Discarding

    def discard(self, name: TopicPartition) -> None:
        """Renames the directory of a deleted or moved replica, and removes its files in the background.

        A directory that cannot be renamed stays. The next partition with its name, or the next start, retries.
        """
        path = self._renamed(name, DELETE_SUFFIX)
        if path is not None:
            self._removals.remove_in_background(self._log_dir.files.remove_tree, path)

    def set_aside_unclaimed(self, name: TopicPartition, was_deleted: bool) -> None:
        """Renames a directory that no replica uses. A failure is logged; the name stays unused until it succeeds."""
        path = self._renamed(name, DELETE_SUFFIX if was_deleted else STRAY_SUFFIX)
        if path is not None and was_deleted:
            self._removals.leave_over([path])

    def _renamed(self, name: TopicPartition, suffix: str) -> str | None:
        """Returns the new path; None if the directory could not be renamed, or is not a partition directory."""
        self._unwritten_ids.pop(name, None)
        try:
            if self._log_dir.is_partition(name):
                return self._rename(name, suffix)
        except StorageError as error:
            if self.exists(name):
                self._unrenamed[name] = suffix
                log.error("Directory of %s not renamed; retrying when the name is used or at restart: %s", name, error)
            else:
                self._log_dir.forget([name])
            return None
        log.warning("%s/%s is not a partition directory; it is left as it is", self._log_dir.path, name)
        self._log_dir.forget([name])  # checkpoint rows of a partition whose files an operator removed
        return None

    def _rename(self, name: TopicPartition, suffix: str) -> str:
        path = self._log_dir.set_aside(name, uuid4(), suffix)
        self._unrenamed.pop(name, None)
        self._unwritten_ids.pop(name, None)
        if suffix == STRAY_SUFFIX:
            log.error(
                "The directory of %s belongs to no topic, or this broker is not a replica; keeping it as %s", name, path
            )
        return path


def _differ_by_one_character(one: UUID, other: UUID) -> bool:
    """Compares the ids as they are written in `partition.metadata`."""
    pairs = zip(uuid_to_text(one), uuid_to_text(other), strict=True)
    return sum(a != b for a, b in pairs) == 1
