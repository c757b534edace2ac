"""How many partitions and replicas a topic gets, and on which brokers: the request's wish, checked.

Decides nothing about names or configs, and knows no facts but the brokers and their racks.
"""

from collections.abc import Iterable, Mapping, Sequence

from headrace.core.cluster.placement import place
from headrace.core.cluster.values import PartitionState, TopicImage
from headrace.model.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    RequestError,
)

# As Kafka's controller: more would make one request hold up all others for too long.
PARTITIONS_PER_REQUEST_MAX = 10_000
# All blocks of a topic must fit into one commit of the metadata store, or it could not be deleted at once.
PARTITIONS_PER_TOPIC_MAX = 10_000

Racks = Mapping[int, str | None]
Replicas = tuple[int, ...]


def topic_replicas(
    *,
    partitions: int,
    replication_factor: int,
    counts_given: bool,
    assignments: Mapping[int, Replicas] | None,
    racks: Racks,
    start: int,
) -> list[Replicas]:
    """The replicas of each partition of a new topic."""
    if assignments:
        if counts_given:
            raise RequestError("give either the assignment or the numbers of partitions and replicas, not both")
        return _explicit(assignments, racks)
    check_partition_count(partitions)
    _check_replication_factor(replication_factor, racks)
    return place(racks, range(partitions), replication_factor, start)


def added_replicas(
    topic: TopicImage,
    *,
    total: int,
    assignments: Sequence[Replicas] | None,
    racks: Racks,
    start: int,
) -> list[Replicas]:
    """The replicas of each partition that a topic must get to have `total` of them."""
    present = len(topic.partitions)
    if total == present:
        raise InvalidPartitions(f"topic {topic.name} already has {present} partitions")
    if total < present:
        raise InvalidPartitions(f"topic {topic.name} has {present} partitions; it cannot shrink to {total}, only grow")
    check_partition_count(total)
    if assignments is None:
        _check_replication_factor(topic.replication_factor, racks)
        return place(racks, range(present, total), topic.replication_factor, start)
    if len(assignments) != total - present:
        raise InvalidReplicaAssignment(
            f"{total - present} partitions are to be added, but {len(assignments)} have replicas assigned"
        )
    _check_explicit(assignments, topic.replication_factor, racks)
    return list(assignments)


def new_partitions(replicas: Iterable[Replicas], leader_epoch: int) -> tuple[PartitionState, ...]:
    """Partitions at their beginning: everyone is in sync with nothing, and the first replica leads."""
    return tuple(PartitionState(brokers, brokers, brokers[0], leader_epoch, 0) for brokers in replicas)


def check_partition_count(count: int) -> None:
    if count < 1:
        raise InvalidPartitions(f"a topic has at least one partition, not {count}")
    if count > PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitions(f"a topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}")


def _check_replication_factor(factor: int, racks: Racks) -> None:
    if factor < 1:
        raise InvalidReplicationFactor(f"a partition has at least one replica, not {factor}")
    if factor > len(racks):
        raise InvalidReplicationFactor(f"{factor} replicas need as many brokers, and {len(racks)} are there")


def _explicit(assignments: Mapping[int, Replicas], racks: Racks) -> list[Replicas]:
    check_partition_count(len(assignments))
    if sorted(assignments) != list(range(len(assignments))):
        raise InvalidReplicaAssignment("the assigned partitions must be numbered from 0 without a gap")
    in_order = [assignments[index] for index in range(len(assignments))]
    _check_explicit(in_order, len(in_order[0]), racks)
    return in_order


def _check_explicit(assignments: Sequence[Replicas], replication_factor: int, racks: Racks) -> None:
    for brokers in assignments:
        if not brokers:
            raise InvalidReplicaAssignment("every assigned partition needs at least one broker")
        if len(set(brokers)) != len(brokers):
            raise InvalidReplicaAssignment(f"a broker cannot hold two replicas of one partition: {brokers}")
        unknown = [broker for broker in brokers if broker not in racks]
        if unknown:
            raise InvalidReplicaAssignment(f"no broker that is there has the id {unknown[0]}")
        if len(brokers) != replication_factor:
            raise InvalidReplicaAssignment(
                f"all partitions of a topic have the same number of replicas: {replication_factor}, not {len(brokers)}"
            )
