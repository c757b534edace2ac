"""The directories of this broker's partitions: which topic each belongs to, opening, creating and discarding them.

No failure here is raised at the caller: a partition whose directory cannot be used is offline by itself, and other
partitions of the same change go on.
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
        self._claimed: set[TopicPartition] = set()  # at the start, until they are opened: their ids are checked
        # Directories that could not be renamed, with the suffix they are to get: their names are not free.
        self._unrenamed: dict[TopicPartition, str] = {}
        self._unwritten_ids: dict[TopicPartition, UUID] = {}  # topic ids that could not be written again

    def exists(self, name: TopicPartition) -> bool:
        """True also if the disk cannot tell: then whatever is done with the directory says what is wrong."""
        try:
            return self._log_dir.files.exists(f"{self._log_dir.path}/{name}")
        except StorageError as error:
            log.error("%s", error)
            return True

    # Whose directory it is

    def claim(self, name: TopicPartition, found: UUID | None, topic_id: UUID, deleted: Iterable[UUID] = ()) -> bool:
        """Whether the directory with the id `found` is the topic's; a damaged id is written again.

        An id that cannot be read, or is wrong by one character, is taken for a flipped bit: the directory of a
        deleted topic is renamed before its name is used again, and one that could not be renamed is remembered.
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
        """Retries the topic ids that could not be written. Call on the event loop: no directory is renamed meanwhile.

        Does not wait for the disk. A power loss leaves an id that is as unreadable as before; the start corrects it.
        """
        for name, topic_id in list(self._unwritten_ids.items()):
            try:
                self._log_dir.restore_topic_id(name, topic_id, sync=False)
            except StorageError:
                continue  # logged the first time
            self._unwritten_ids.pop(name, None)
            log.warning("Topic id of %s written", name)

    def _is_of(self, name: TopicPartition, topic_id: UUID) -> bool:
        if name in self._unrenamed:
            return False
        return name in self._claimed or self.claim(name, self._log_dir.topic_id_of(name), topic_id)

    # Opening and creating

    def open_or_create(self, name: TopicPartition, topic_id: UUID, config: LogConfig) -> Log | StorageError:
        """The partition's log, or why it cannot be used.

        A directory of another topic, which a failed deletion has left, is renamed first: its records are not this
        topic's, and records appended to it would be lost with it at the next start.
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
            error.__cause__ = error.__context__ = None  # their tracebacks keep the files of the failed attempt open
            return error.with_traceback(None)

    def _marking(self, name: TopicPartition, topic_id: UUID, opened: Log) -> Log:
        opened.mark = self._log_dir.replicas.mark(ReplicaId(topic_id, name.partition))
        return opened

    # Discarding

    def discard(self, name: TopicPartition) -> None:
        """Free the name of a deleted or moved replica now; its files are removed in the background.

        A directory that cannot be renamed stays. The next partition of its name, and the next start, try again.
        """
        path = self._renamed(name, DELETE_SUFFIX)
        if path is not None:
            self._removals.remove_in_background(self._log_dir.files.remove_tree, path)

    def set_aside_unclaimed(self, name: TopicPartition, was_deleted: bool) -> None:
        """The caller goes on if this fails: the name is not used before the directory could be renamed."""
        path = self._renamed(name, DELETE_SUFFIX if was_deleted else STRAY_SUFFIX)
        if path is not None and was_deleted:
            self._removals.leave_over([path])

    def _renamed(self, name: TopicPartition, suffix: str) -> str | None:
        """The new path; None if the directory could not be renamed, or was not made for a partition."""
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
        self._log_dir.forget([name])  # the rows of a partition whose files were removed by hand
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
    """As they stand in their files."""
    pairs = zip(uuid_to_text(one), uuid_to_text(other), strict=True)
    return sum(a != b for a, b in pairs) == 1
