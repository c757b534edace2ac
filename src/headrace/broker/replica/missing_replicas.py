"""Detects, at the start, replicas whose files are missing, before anything is created in their place.

A replica that has had records on this disk (`storage/directory/replica_inventory.py`) and has no segments now is
lost: other replicas would truncate their records to follow its empty log. It is marked with an unreadable offset
range, so that it leaves the ISR and ELR before this broker has a session (`replication/replica_health.py`).

A replica that never had a record here is either new, or an empty log whose directory was lost in a power failure. It
also leaves the partition to other replicas in the ISR or ELR, which may hold more. The last one stays: if all
replicas are empty, it remains the leader.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from headrace.broker.replica.flush_policies import syncs_before_ack
from headrace.broker.replica.partition import Partition
from headrace.config.values import log_config
from headrace.core.image.metadata_image import MetadataImage, TopicImage
from headrace.core.image.model import PartitionRegistration
from headrace.model.errors import StorageError
from headrace.model.ids import TopicPartition
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.directory.replica_inventory import Known, ReplicaId
from headrace.storage.segment.segment_verifier import CorruptRange

log = logging.getLogger(__name__)


class Missing(NamedTuple):
    """A replica without segments at the start."""

    topic: TopicImage
    partition: int
    state: PartitionRegistration
    acked_unsynced: bool  # whether the previous process acknowledged records of the topic before they were synced

    @property
    def replica(self) -> ReplicaId:
        return ReplicaId(self.topic.topic_id, self.partition)


class MissingReplicas:
    def __init__(self, log_dir: LogDirectory, node_id: int) -> None:
        self._log_dir = log_dir
        self._held = log_dir.replicas
        self._node_id = node_id
        self._missing: dict[ReplicaId, Missing] = {}
        self._doubtful: list[Partition] = []  # at the start: replicas that are marked unreadable but are not lost

    def look(self, image: MetadataImage, broker_configs: Mapping[str, str]) -> None:
        """Finds the missing replicas. Call before a directory or segment is created, or a checkpoint row is removed."""
        for topic in image.topics.values():
            for index, state in enumerate(topic.partitions):
                is_replicated = self._node_id in state.replicas and len(state.replicas) > 1
                if is_replicated and not self._log_dir.has_segments(TopicPartition(topic.name, index)):
                    missing = Missing(topic, index, state, self._acked_unsynced(topic, broker_configs))
                    self._missing[missing.replica] = missing
                    if self._had_records(missing):
                        self._held.note(missing.replica, Known.LOST)
        try:
            self._held.write()
        except StorageError as error:
            log.error("Lost replicas not recorded; a start that follows a crash may not recognize them: %s", error)

    def _acked_unsynced(self, topic: TopicImage, broker_configs: Mapping[str, str]) -> bool:
        recorded = self._log_dir.acked_unsynced_before(topic.topic_id)
        if recorded is None:
            return not syncs_before_ack(log_config(topic.configs, broker_configs))
        return recorded

    def _had_records(self, missing: Missing) -> bool:
        state, held = missing.state, self._held
        if held.was_corrupt or held.is_held(missing.replica) or held.is_lost(missing.replica):
            return True
        name = TopicPartition(missing.topic.name, missing.partition)
        if not held.was_recorded and self._log_dir.was_named(name):
            return True
        if not (state.is_electable(self._node_id) or state.last_leader == self._node_id) or self._never_acked(missing):
            return False
        # Directories survive a stopped or crashed process. A host crash removes those that were never synced. Such a
        # directory can have held acknowledged records only if they were acknowledged before they were synced.
        return self._log_dir.same_boot_as_last_run or (missing.acked_unsynced and not self._log_dir.was_clean)

    def _never_acked(self, missing: Missing) -> bool:
        """Whether the replica is new: its acknowledged records would have been synced, and the first one recorded.

        The previous process may have crashed before it created the directory.
        """
        return self._held.was_recorded and not missing.acked_unsynced

    def settle(self, partitions: Iterable[Partition], image: MetadataImage) -> None:
        """Marks lost replicas with an unreadable offset range, and records which replicas have records.

        Call when the logs are open.
        """
        for partition in partitions:
            replica, opened = _id_of(partition), partition.log
            has_records = opened.log_end_offset > opened.log_start_offset
            if self._is_emptied(partition):
                self._held.note(replica, Known.LOST)
            elif opened.log_end_offset > 0 and (has_records or not self._held.is_lost(replica)):
                self._held.note(replica, Known.HELD)
            if not self._held.is_lost(replica) and self._is_doubtful(partition):
                self._doubtful.append(partition)
            if self._held.is_lost(replica) or self._is_doubtful(partition):
                start = partition.log_start_offset
                opened.holes.append(CorruptRange(0, 0, start, start, "its files are missing"))
        replicas = set(_replicas(image, self._node_id))
        try:
            self._held.rewrite(replicas.__contains__)
        except StorageError as error:
            log.error("Replicas with records not recorded; retrying with their next sync: %s", error)

    def is_in_doubt(self, partition: Partition) -> bool:
        """Whether the partition is marked unreadable only because another replica may hold more records."""
        return partition in self._doubtful

    def end_doubts(self, image: MetadataImage) -> None:
        """Clears the mark of doubtful replicas that are still electable.

        No other replica could take over, so they are complete. Call when the replicas in doubt have left the ISR and
        ELR.
        """
        for partition in self._doubtful:
            topic = image.topics.get(partition.topic)
            is_known = topic is not None and topic.topic_id == partition.topic_id
            if topic is not None and is_known and topic.partitions[partition.index].is_electable(self._node_id):
                partition.log.holes.clear()
                partition.refetch_from_epoch = None
        self._doubtful.clear()

    def lacks_records(self, partition: Partition) -> bool:
        """Whether a partition that is opened late must not lead, because it held more records before."""
        is_lost = self._held.is_lost(_id_of(partition)) or self._is_emptied(partition)
        return is_lost or self._is_doubtful(partition)

    def _is_emptied(self, partition: Partition) -> bool:
        is_replicated = len(partition.replicas) > 1
        return is_replicated and partition.log_end_offset == 0 and self._held.is_held(_id_of(partition))

    def _is_doubtful(self, partition: Partition) -> bool:
        """Whether the replica has no files, and another one in the ISR or ELR may hold more records."""
        missing = self._missing.get(_id_of(partition))
        if missing is None or not partition.counts:
            return False
        return bool({*missing.state.isr, *missing.state.elr} - {self._node_id})


def _id_of(partition: Partition) -> ReplicaId:
    return ReplicaId(partition.topic_id, partition.index)


def _replicas(image: MetadataImage, node_id: int) -> Iterator[ReplicaId]:
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            if node_id in state.replicas:
                yield ReplicaId(topic.topic_id, index)
