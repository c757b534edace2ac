"""Validates creation, growth and deletion of topics.

Every function reads the image and the request, and returns one decision or error per topic. Pure; performs no I/O.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from headrace.core.controller.config_control import CheckedConfigs, ConfigsOfTopics
from headrace.core.controller.config_describe import BrokerLayers, ConfigRow
from headrace.core.controller.replica_placer import (
    PARTITIONS_PER_REQUEST_MAX,
    Candidates,
    added_replicas,
    new_partitions,
    topic_replicas,
)
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision, Tombstone, TopicImage
from headrace.core.topic import check_topic_name, unify_collision_chars
from headrace.model.errors import (
    ErrorCode,
    InvalidTopic,
    PolicyViolation,
    RequestError,
    TopicExists,
    UnknownTopic,
    UnknownTopicId,
)

# Tombstones of deleted topics make a re-created topic start with a higher leader epoch. Beyond this many, the oldest
# are removed and a leader epoch floor for all new topics replaces them.
TOMBSTONES_MAX = 1000
# Tombstones that one commit removes at most: with the floor, they must fit into it.
TOMBSTONES_PER_PRUNING = 100
# Ids of deleted topics that are kept per name, so that a broker that was offline may remove their directories: 3.5 KB
# beside a topic's configs. The directory of an older one is kept as a stray for `log.stray.retention.ms`.
FORMER_IDS_MAX = 100

DEFAULT = -1  # in a request: the broker's own default


class TopicDeletionDisabled(RequestError):
    code = ErrorCode.TOPIC_DELETION_DISABLED


class NewTopic(NamedTuple):
    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, tuple[int, ...]] | None = None  # partition → brokers; excludes the two above
    configs: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class NewPartitions:
    topic: str
    count: int  # partitions after the change
    assignments: tuple[tuple[int, ...], ...] | None = None  # the brokers of each new partition


class CreatedTopic(NamedTuple):
    name: str
    topic_id: UUID
    partitions: int
    replication_factor: int
    configs: tuple[ConfigRow, ...]


class DeletedTopic(NamedTuple):
    name: str
    topic_id: UUID


class TopicDefaults(NamedTuple):
    """The broker's defaults for values that CreateTopics leaves out."""

    partitions: int
    replication_factor: int
    layers: BrokerLayers


def create_topics(
    wanted: Mapping[str, NewTopic],
    image: MetadataImage,
    topic_ids: Mapping[str, UUID],
    defaults: TopicDefaults,
) -> dict[str, Decision[CreatedTopic] | RequestError]:
    """Creates topics. `topic_ids` has a new id for every name in `wanted`."""
    outcomes: dict[str, Decision[CreatedTopic] | RequestError] = {}
    names_taken: dict[str, str] = {}
    configs = ConfigsOfTopics(defaults.layers)
    partitions_left = PARTITIONS_PER_REQUEST_MAX
    for name, topic in wanted.items():
        try:
            _check_free(name, image, names_taken)
            decision = _create(topic, image, topic_ids[name], defaults, configs.of(topic.configs))
            if decision.row.partitions > partitions_left:
                raise PolicyViolation(
                    f"one request creates at most {PARTITIONS_PER_REQUEST_MAX} partitions; use more requests"
                )
        except RequestError as error:
            outcomes[name] = error
            continue
        outcomes[name] = decision
        names_taken[unify_collision_chars(name)] = name
        partitions_left -= decision.row.partitions
    return outcomes


def add_partitions(
    wanted: Mapping[str, NewPartitions], image: MetadataImage
) -> dict[str, Decision[int] | RequestError]:
    """Adds partitions. The row is the topic's partition count after the change."""
    outcomes: dict[str, Decision[int] | RequestError] = {}
    partitions_left = PARTITIONS_PER_REQUEST_MAX
    for name, more in wanted.items():
        try:
            topic = _known(name, image)
            decision = _grow(topic, more, image, partitions_left)
        except RequestError as error:
            outcomes[name] = error
            continue
        outcomes[name] = decision
        partitions_left -= decision.row - len(topic.partitions)
    return outcomes


def delete_topics(
    targets: Collection[str | UUID], image: MetadataImage, *, enabled: bool, now_ms: int
) -> dict[str | UUID, Decision[DeletedTopic] | RequestError]:
    """Deletes topics by name or id. The metadata is deleted first; brokers remove their directories afterwards."""
    outcomes: dict[str | UUID, Decision[DeletedTopic] | RequestError] = {}
    going: set[UUID] = set()
    for target in targets:
        try:
            if not enabled:
                raise TopicDeletionDisabled("topics cannot be deleted here: delete.topic.enable is false")
            topic = _known(target, image)
            if topic.topic_id in going:
                raise RequestError(f"topic {topic.name} is named twice, once by its name and once by its id")
        except RequestError as error:
            outcomes[target] = error
            continue
        going.add(topic.topic_id)
        outcomes[target] = _delete(topic, now_ms)
    return outcomes


def prune_tombstones(image: MetadataImage) -> Decision[int]:
    """Removes the oldest tombstones if there are too many.

    Raises the leader epoch floor of new topics above their epochs. The row is the number of removed tombstones: 0
    when there is nothing more to do.
    """
    excess = min(len(image.tombstones) - TOMBSTONES_MAX, TOMBSTONES_PER_PRUNING)
    if excess <= 0:
        return Decision(0, {})
    oldest = list(image.tombstones.items())[:excess]
    floor = max(image.leader_epoch_floor, *(tombstone.leader_epoch + 1 for _, tombstone in oldest))
    writes: dict[str, bytes | None] = {records.deleted_key(name): None for name, _ in oldest}
    if floor > image.leader_epoch_floor:  # topic creations compare it, so it is written only to raise it
        writes[records.LEADER_EPOCH_FLOOR] = records.encode_field("epoch", floor)
    return Decision(excess, writes)


def _check_free(name: str, image: MetadataImage, names_taken: Mapping[str, str]) -> None:
    check_topic_name(name)
    if name in image.topics:
        raise TopicExists(f"topic {name} already exists")
    like = image.topic_like(name) or names_taken.get(unify_collision_chars(name))
    if like is not None:
        raise InvalidTopic(
            f"topic {name} collides with {like}: names that differ only in '.' and '_' share their metrics"
        )


def _create(
    topic: NewTopic, image: MetadataImage, topic_id: UUID, defaults: TopicDefaults, configs: CheckedConfigs
) -> Decision[CreatedTopic]:
    brokers = Candidates.of(image)
    replicas = topic_replicas(
        partitions=topic.partitions if topic.partitions != DEFAULT else defaults.partitions,
        replication_factor=(
            topic.replication_factor if topic.replication_factor != DEFAULT else defaults.replication_factor
        ),
        # Only DEFAULT may accompany an explicit assignment, so the request's own numbers are checked.
        counts_given=topic.partitions != DEFAULT or topic.replication_factor != DEFAULT,
        assignments=topic.assignments,
        brokers=brokers,
        start=topic_id.int,
    )
    states = new_partitions(replicas, first_leader_epoch(topic.name, image), brokers.away)
    writes: dict[str, bytes | None] = {
        records.topic_key(topic.name): records.encode_topic(topic_id, configs.set, _former_ids(topic.name, image))
    }
    writes |= records.block_writes(topic_id, states, range(len(states)))
    writes |= dict.fromkeys(records.name_keys(topic.name), records.encode_field("topic", topic.name))
    writes[records.deleted_key(topic.name)] = None  # the new topic continues the epochs
    return Decision(
        CreatedTopic(topic.name, topic_id, len(states), len(replicas[0]), configs.rows),
        writes,
        unchanged=(records.UNREGISTRATIONS, records.LEADER_EPOCH_FLOOR, *defaults.layers.keys),
        touched=(records.PLACEMENTS,),
    )


def _former_ids(name: str, image: MetadataImage) -> tuple[UUID, ...]:
    tombstone = image.tombstones.get(name)
    return () if tombstone is None else (*tombstone.former_ids, tombstone.topic_id)[-FORMER_IDS_MAX:]


def first_leader_epoch(name: str, image: MetadataImage) -> int:
    """Returns a leader epoch above all of deleted topics of this name: clients may still have its epochs cached."""
    tombstone = image.tombstones.get(name)
    return image.leader_epoch_floor if tombstone is None else tombstone.leader_epoch + 1


def _grow(topic: TopicImage, more: NewPartitions, image: MetadataImage, at_most: int) -> Decision[int]:
    present = len(topic.partitions)
    if more.count - present > at_most:
        raise PolicyViolation(f"one request creates at most {PARTITIONS_PER_REQUEST_MAX} partitions; use more requests")
    brokers = Candidates.of(image)
    replicas = added_replicas(
        topic,
        total=more.count,
        assignments=more.assignments,
        brokers=brokers,
        start=topic.topic_id.int,
    )
    # Not from 0: a deleted topic of this name may have had more partitions than this one was created with.
    states = topic.partitions + new_partitions(replicas, topic.lowest_leader_epoch, brokers.away)
    writes = records.block_writes(topic.topic_id, states, range(present, len(states)))
    # The topic's key is compared, so that no block is added to a topic that another broker deletes.
    return Decision(
        len(states),
        dict(writes),
        unchanged=(records.topic_key(topic.name), records.UNREGISTRATIONS),
        touched=(records.PLACEMENTS,),
    )


def _delete(topic: TopicImage, now_ms: int) -> Decision[DeletedTopic]:
    tombstone = Tombstone(topic.topic_id, topic.highest_leader_epoch, now_ms, topic.former_ids)
    writes: dict[str, bytes | None] = dict.fromkeys(records.block_keys(topic.topic_id, len(topic.partitions)), None)
    writes[records.topic_key(topic.name)] = None
    writes[records.deleted_key(topic.name)] = records.encode_tombstone(tombstone)
    writes |= dict.fromkeys(records.name_keys(topic.name))
    # Partitions that another broker adds at the same time begin in this block. Without this delete it would be left
    # behind.
    writes[records.block_key(topic.topic_id, len(topic.partitions) // records.PARTITIONS_PER_BLOCK)] = None
    return Decision(DeletedTopic(topic.name, topic.topic_id), writes)


def _known(target: str | UUID, image: MetadataImage) -> TopicImage:
    if isinstance(target, UUID):
        name = image.topic_ids.get(target)
        if name is None:
            raise UnknownTopicId(f"no topic has the id {target}")
        return image.topics[name]
    topic = image.topics.get(target)
    if topic is None:
        raise UnknownTopic(f"there is no topic {target}")
    return topic
