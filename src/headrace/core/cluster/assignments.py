"""How many partitions and replicas a topic gets, and on which brokers: the request's wish, checked.

Decides nothing about names or configs, and knows no facts but the brokers and their racks. Brokers that are away
get replicas only where too few are there: while one restarts, a topic of three replicas can still be created, and
it is in sync with two of them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.placement import place, rack_or_host
from headrace.core.cluster.values import BrokerInfo, PartitionState, TopicImage
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


class Candidates(NamedTuple):
    """The brokers that may hold a replica, with their racks."""

    there: Racks
    away: Racks = MappingProxyType({})  # registered, and without a session just now

    @classmethod
    def of(cls, image: ClusterImage) -> "Candidates":
        live = image.live_brokers()
        racks = {node_id: _rack(one) for node_id, one in image.brokers.items()}
        return cls(
            {node_id: racks[node_id] for node_id in live},
            {node_id: rack for node_id, rack in racks.items() if node_id not in live},
        )


def _rack(broker: BrokerInfo) -> str | None:
    return rack_or_host(broker.rack, broker.endpoints[0].host if broker.endpoints else None)


def topic_replicas(
    *,
    partitions: int,
    replication_factor: int,
    counts_given: bool,
    assignments: Mapping[int, Replicas] | None,
    brokers: Candidates,
    start: int,
) -> list[Replicas]:
    """The replicas of each partition of a new topic."""
    if assignments:
        if counts_given:
            raise RequestError("give either the assignment or the numbers of partitions and replicas, not both")
        return _explicit(assignments, brokers)
    check_partition_count(partitions)
    return _placed(brokers, range(partitions), replication_factor, start)


def added_replicas(
    topic: TopicImage,
    *,
    total: int,
    assignments: Sequence[Replicas] | None,
    brokers: Candidates,
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
        return _placed(brokers, range(present, total), topic.replication_factor, start)
    if len(assignments) != total - present:
        raise InvalidReplicaAssignment(
            f"{total - present} partitions are to be added, but {len(assignments)} have replicas assigned"
        )
    _check_explicit(assignments, topic.replication_factor, brokers)
    return list(assignments)


def new_partitions(
    replicas: Iterable[Replicas], leader_epoch: int, away: Collection[int] = ()
) -> tuple[PartitionState, ...]:
    """Partitions at their beginning: all that are there are in sync with nothing, and the first of them leads."""
    states = []
    for brokers in replicas:
        isr = tuple(broker for broker in brokers if broker not in away)
        states.append(PartitionState(brokers, isr, isr[0], leader_epoch, 0))
    return tuple(states)


def check_partition_count(count: int) -> None:
    if count < 1:
        raise InvalidPartitions(f"a topic has at least one partition, not {count}")
    if count > PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitions(f"a topic has at most {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}")


def _placed(brokers: Candidates, indexes: range, factor: int, start: int) -> list[Replicas]:
    if factor < 1:
        raise InvalidReplicationFactor(f"a partition has at least one replica, not {factor}")
    there = len(brokers.there)
    if there == 0:
        raise InvalidReplicationFactor("no broker is there to lead a new partition; try again when one is")
    if factor <= there:
        return place(brokers.there, indexes, factor, start)
    if factor > there + len(brokers.away):
        missing = f" and {len(brokers.away)} away" if brokers.away else ""
        raise InvalidReplicationFactor(f"{factor} replicas need as many brokers, and {there} are there{missing}")
    rest = place(brokers.away, indexes, factor - there, start)
    return [led + others for led, others in zip(place(brokers.there, indexes, there, start), rest, strict=True)]


def _explicit(assignments: Mapping[int, Replicas], candidates: Candidates) -> list[Replicas]:
    check_partition_count(len(assignments))
    if sorted(assignments) != list(range(len(assignments))):
        raise InvalidReplicaAssignment("the assigned partitions must be numbered from 0 without a gap")
    in_order = [assignments[index] for index in range(len(assignments))]
    _check_explicit(in_order, len(in_order[0]), candidates)
    return in_order


def _check_explicit(assignments: Sequence[Replicas], replication_factor: int, candidates: Candidates) -> None:
    for brokers in assignments:
        if not brokers:
            raise InvalidReplicaAssignment("every assigned partition needs at least one broker")
        if len(set(brokers)) != len(brokers):
            raise InvalidReplicaAssignment(f"a broker cannot hold two replicas of one partition: {brokers}")
        unknown = [one for one in brokers if one not in candidates.there and one not in candidates.away]
        if unknown:
            raise InvalidReplicaAssignment(f"no broker has the id {unknown[0]}")
        if candidates.there.keys().isdisjoint(brokers):
            raise InvalidReplicaAssignment(f"none of the brokers {brokers} is there to lead the partition")
        if len(brokers) != replication_factor:
            raise InvalidReplicaAssignment(
                f"all partitions of a topic have the same number of replicas: {replication_factor}, not {len(brokers)}"
            )
