"""Decides whether a stray directory, which belongs to no replica of this broker, may be removed.

Pure; performs no I/O.

A directory is removed at once only if it holds no records or its topic was deleted. All others are kept for a time:
the metadata may be the one that is wrong, restored from an older snapshot or reset. A replica that may be the only
one with the newest records is kept whatever its age.
"""

from enum import Enum, auto
from typing import NamedTuple
from uuid import UUID

from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import NO_LEADER, PartitionRegistration


class Verdict(Enum):
    REMOVE = auto()
    EXPIRE = auto()  # kept for `log.stray.retention.ms`
    KEEP = auto()


class StrayReplica(NamedTuple):
    """A stray directory. `topic_id` and `newest_epoch` are None where they cannot be read.

    `is_partition` is False for a directory that was not made for a partition: it has neither metadata nor a segment.
    """

    topic_id: UUID | None
    partition: int
    newest_epoch: int | None  # the leader epoch of the newest batch
    is_partition: bool
    has_records: bool


def deleted_topic_ids(image: MetadataImage) -> set[UUID]:
    """Returns the ids of topics that the metadata lists as deleted."""
    deleted = {one for topic in image.topics.values() for one in topic.former_ids}
    for tombstone in image.tombstones.values():
        deleted |= {tombstone.topic_id, *tombstone.former_ids}
    return deleted


def judge(stray: StrayReplica, image: MetadataImage, node_id: int) -> Verdict:
    if not stray.is_partition:
        return Verdict.KEEP  # an earlier version renamed it
    if not stray.has_records:
        return Verdict.REMOVE
    if not image.topics and not image.tombstones:
        return Verdict.KEEP  # metadata without any topic, deleted ones included, was lost or belongs to another cluster
    if stray.topic_id is None:
        return Verdict.EXPIRE
    if stray.topic_id in deleted_topic_ids(image):
        return Verdict.REMOVE
    name = image.topic_ids.get(stray.topic_id)
    if name is None or stray.partition >= len(image.topics[name].partitions):
        return Verdict.EXPIRE
    state = image.topics[name].partitions[stray.partition]
    return Verdict.EXPIRE if _is_elsewhere(stray, state, image, node_id) else Verdict.KEEP


def _is_elsewhere(stray: StrayReplica, state: PartitionRegistration, image: MetadataImage, node_id: int) -> bool:
    """Returns whether a live leader holds the partition, in metadata that is not older than this directory.

    A leader that had lost its log would have left the ISR. A leader epoch in the directory that the metadata does not
    contain is newer than the metadata: this may be the only replica with records of that epoch. Elections after a
    restore may have raised the epoch past it, which is why such a directory is not removed at once.
    """
    leader = image.brokers.get(state.leader)
    is_led = state.leader != NO_LEADER and (state.leader == node_id or (leader is not None and leader.is_live))
    is_known = stray.newest_epoch is not None and stray.newest_epoch <= state.leader_epoch
    return is_led and is_known and state.leader in state.isr and not state.adding and not state.removing
