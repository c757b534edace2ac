"""Replicas whose files are gone: found at a start, before anything is created in their place.

A replica that has had records on this disk (`storage/held_replicas.py`) and has no segments now is lost: other replicas
would truncate their records to follow its empty log. It gets a hole, so that it leaves the partition to them before
this broker has a session (`replication/health.py`). One that never had a record there is new, or it is an empty log of
which a power failure took the directory: it leads on.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from headrace.broker.flush_policies import syncs_before_ack
from headrace.broker.partition import Partition
from headrace.core.cluster.image import ClusterImage, TopicImage
from headrace.core.cluster.values import PartitionState
from headrace.model.configs import log_config
from headrace.model.errors import StorageError
from headrace.model.ids import TopicPartition
from headrace.storage.held_replicas import Known, ReplicaId
from headrace.storage.log_dir import LogDir
from headrace.storage.segment_check import Hole

log = logging.getLogger(__name__)


class Missing(NamedTuple):
    """A replica of which a start found no segments."""

    topic: TopicImage
    partition: int
    state: PartitionState

    @property
    def replica(self) -> ReplicaId:
        return ReplicaId(self.topic.topic_id, self.partition)


class LostReplicas:
    def __init__(self, log_dir: LogDir, node_id: int) -> None:
        self._log_dir = log_dir
        self._held = log_dir.replicas
        self._node_id = node_id
        self._missing: dict[ReplicaId, Missing] = {}

    def look(self, image: ClusterImage, broker_configs: Mapping[str, str]) -> None:
        """Call before a directory is created, a segment made or a checkpoint row removed."""
        for topic in image.topics.values():
            for index, state in enumerate(topic.partitions):
                is_replicated = self._node_id in state.replicas and len(state.replicas) > 1
                if is_replicated and not self._log_dir.has_segments(TopicPartition(topic.name, index)):
                    missing = Missing(topic, index, state)
                    self._missing[missing.replica] = missing
                    if self._had_records(missing, broker_configs):
                        self._held.note(missing.replica, Known.LOST)
        try:
            self._held.write()
        except StorageError as error:
            log.error("Lost replicas not recorded; a start that follows a crash may not recognize them: %s", error)

    def _had_records(self, missing: Missing, broker_configs: Mapping[str, str]) -> bool:
        topic, state, held = missing.topic, missing.state, self._held
        if held.was_corrupt or held.is_held(missing.replica) or held.is_lost(missing.replica):
            return True
        name = TopicPartition(topic.name, missing.partition)
        if not held.was_recorded and self._log_dir.was_named(name):
            return True
        if not (state.relies_on(self._node_id) or state.last_leader == self._node_id):
            return False
        # A process that was killed or stopped leaves its directories. A host crash takes those that were never synced,
        # with records only if they were acknowledged before they were synced.
        if self._log_dir.keeps_unsynced:
            return True
        recorded = self._log_dir.acked_unsynced_before(topic.topic_id)
        if recorded is None:
            recorded = not syncs_before_ack(log_config(topic.configs, broker_configs))
        return recorded and not self._log_dir.was_clean

    def settle(self, partitions: Iterable[Partition], image: ClusterImage) -> None:
        """Call when the logs are open: a lost replica gets a hole, and what has records is known to be held."""
        for partition in partitions:
            replica, opened = _id_of(partition), partition.log
            has_records = opened.log_end_offset > opened.log_start_offset
            if self._is_emptied(partition):
                self._held.note(replica, Known.LOST)
            elif opened.log_end_offset > 0 and (has_records or not self._held.is_lost(replica)):
                self._held.note(replica, Known.HELD)
            if self._held.is_lost(replica) or self._is_doubtful(partition):
                start = partition.log_start_offset
                opened.holes.append(Hole(0, 0, start, start, "its files are missing"))
        replicas = set(_replicas(image, self._node_id))
        try:
            self._held.rewrite(replicas.__contains__)
        except StorageError as error:
            log.error("Replicas with records not recorded; retrying with their next sync: %s", error)

    def lacks_records(self, partition: Partition) -> bool:
        """Whether a partition that is opened late must not lead: before, it had more than is left."""
        is_lost = self._held.is_lost(_id_of(partition)) or self._is_emptied(partition)
        return is_lost or self._is_doubtful(partition)

    def _is_emptied(self, partition: Partition) -> bool:
        is_replicated = len(partition.replicas) > 1
        return is_replicated and partition.log_end_offset == 0 and self._held.is_held(_id_of(partition))

    def _is_doubtful(self, partition: Partition) -> bool:
        """Whether nothing is left of a replica that another one can replace: then that one may hold more."""
        missing = self._missing.get(_id_of(partition))
        if missing is None or not partition.counts:
            return False
        return bool({*missing.state.isr, *missing.state.elr} - {self._node_id})


def _id_of(partition: Partition) -> ReplicaId:
    return ReplicaId(partition.topic_id, partition.index)


def _replicas(image: ClusterImage, node_id: int) -> Iterator[ReplicaId]:
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            if node_id in state.replicas:
                yield ReplicaId(topic.topic_id, index)
