"""Places replicas of new partitions: leaders round-robin over brokers, replicas on as many racks as possible.

Also validates the partition counts, replication factors and explicit assignments of a request. Unavailable brokers
get replicas only where too few are live: while one broker restarts, a topic with three replicas can still be created,
and two of them are in sync.

Pure arithmetic on broker ids and racks.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import NamedTuple

from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import BrokerRegistration, PartitionRegistration, TopicImage
from headrace.model.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    RequestError,
)


def rack_or_host(rack: str | None, host: str | None) -> str | None:
    """Returns a broker's failure domain: its rack, or without one its host."""
    return rack if rack is not None or not host else f"host {host}"


def place(
    racks: Mapping[int, str | None], indexes: Sequence[int], replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """Returns the replicas of each partition index, the preferred leader first.

    `racks` maps each broker to its rack. `start` shifts the round-robin, so that the first partitions of many topics
    are not all led by the same broker.
    """
    assert 1 <= replication_factor <= len(racks), "the caller has checked that there are enough brokers"
    ring = rack_alternating(racks)
    return [_replicas(ring, racks, start + index, replication_factor) for index in indexes]


def rack_alternating(racks: Mapping[int, str | None]) -> list[int]:
    """Returns all brokers in an order that changes the rack at every step, as long as the racks allow it."""
    brokers_of_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        brokers_of_rack.setdefault(_rack_of(racks, broker), []).append(broker)
    turns = zip_longest(*(brokers_of_rack[rack] for rack in sorted(brokers_of_rack)))
    return [broker for broker in chain.from_iterable(turns) if broker is not None]


def _replicas(
    ring: Sequence[int], racks: Mapping[int, str | None], turn: int, replication_factor: int
) -> tuple[int, ...]:
    """Returns the next leader, then the nearest brokers on the ring whose rack has no replica yet, then the others."""
    brokers = len(ring)
    leader = turn % brokers
    if replication_factor == 1:
        return (ring[leader],)
    # After each pass over all brokers the followers are shifted by one. Otherwise each leader would always have the
    # same followers.
    shift = (turn // brokers) % (brokers - 1)
    others = [ring[(leader + 1 + (shift + step) % (brokers - 1)) % brokers] for step in range(brokers - 1)]
    taken = {_rack_of(racks, ring[leader])}
    first_of_rack: list[int] = []
    rest: list[int] = []
    for broker in others:
        rack = _rack_of(racks, broker)
        (rest if rack in taken else first_of_rack).append(broker)
        taken.add(rack)
    return (ring[leader], *(first_of_rack + rest)[: replication_factor - 1])


def _rack_of(racks: Mapping[int, str | None], broker: int) -> str:
    """Returns a broker's rack. One without a rack gets a unique rack; the NUL distinguishes it from every real name."""
    rack = racks[broker]
    return f"\0{broker:012d}" if rack is None else rack


# As in Kafka's controller: with more, one request would delay all others for too long.
PARTITIONS_PER_REQUEST_MAX = 10_000
# All blocks of a topic must fit into one commit of the metadata store. Otherwise the topic could not be deleted
# atomically.
PARTITIONS_PER_TOPIC_MAX = 10_000

Racks = Mapping[int, str | None]
Replicas = tuple[int, ...]


class Candidates(NamedTuple):
    """The brokers that may hold a replica, with their racks."""

    there: Racks
    away: Racks = MappingProxyType({})  # registered, but without a session

    @classmethod
    def of(cls, image: MetadataImage) -> "Candidates":
        live = image.live_brokers()
        racks = {node_id: _rack(one) for node_id, one in image.brokers.items()}
        return cls(
            {node_id: racks[node_id] for node_id in live},
            {node_id: rack for node_id, rack in racks.items() if node_id not in live},
        )


def _rack(broker: BrokerRegistration) -> str | None:
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
    """Returns the replicas of each partition of a new topic."""
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
    """Returns the replicas of the partitions to add so that the topic has `total` of them."""
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
) -> tuple[PartitionRegistration, ...]:
    """Returns new partitions. Available replicas are in the ISR, and the first of them leads."""
    states = []
    for brokers in replicas:
        isr = tuple(broker for broker in brokers if broker not in away)
        states.append(PartitionRegistration(brokers, isr, isr[0], leader_epoch, 0))
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
        raise InvalidReplicationFactor("All brokers are currently fenced.")
    if factor <= there:
        return place(brokers.there, indexes, factor, start)
    if factor > there + len(brokers.away):
        raise InvalidReplicationFactor(
            f"The target replication factor of {factor} cannot be reached because only {there + len(brokers.away)} "
            "broker(s) are registered."
        )
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
