"""Server-side assignors: the target assignment of a group.

`uniform` balances partition counts, moves as few partitions as possible, and prefers partitions with a replica in the
member's rack. `range` assigns each member one contiguous range of each topic, so that topics with the same partition
count are split alike. Both are deterministic functions of their arguments. No I/O.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from headrace.core.group.consumer.assignment import gathered, pairs
from headrace.core.group.consumer.model import NO_PARTITIONS, Partitions
from headrace.core.group.consumer.topic_metadata import TopicView

Partition = tuple[UUID, int]


class Candidate(NamedTuple):
    """A member as input of an assignor."""

    topics: frozenset[UUID]
    rack: str | None = None
    instance_id: str | None = None
    had: Partitions = NO_PARTITIONS  # its previous target assignment


Candidates = Mapping[str, Candidate]
Assignor = Callable[[Candidates, Mapping[UUID, TopicView]], dict[str, Partitions]]


def assign_ranges(members: Candidates, topics: Mapping[UUID, TopicView]) -> dict[str, Partitions]:
    shares: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    # A static member keeps its position when its process, and so its member id, changes.
    row = sorted(members, key=lambda one: (members[one].instance_id is None, members[one].instance_id or one))
    for topic_id, topic in topics.items():
        readers = [member_id for member_id in row if topic_id in members[member_id].topics]
        start = 0
        for place, member_id in enumerate(readers):
            end = start + topic.partitions // len(readers) + (place < topic.partitions % len(readers))
            if end > start:
                shares[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(shares)


def assign_uniformly(members: Candidates, topics: Mapping[UUID, TopicView]) -> dict[str, Partitions]:
    if not members:
        return {}
    owners = _kept(members, topics)
    if len({member.topics for member in members.values()}) == 1:
        _fill_to_quota(members, topics, owners)
    else:
        _fill_by_load(members, topics, owners)
        _level(members, owners)
    shares: dict[str, list[Partition]] = {member_id: [] for member_id in members}
    for partition, owner in owners.items():
        shares[owner].append(partition)
    return {member_id: gathered(share) for member_id, share in shares.items()}


def _kept(members: Candidates, topics: Mapping[UUID, TopicView]) -> dict[Partition, str]:
    """Returns the previous assignment.

    Without partitions that were removed, or that their owner no longer subscribes to.
    """
    owners: dict[Partition, str] = {}
    for member_id in sorted(members):
        for topic_id, index in sorted(pairs(members[member_id].had)):
            topic = topics.get(topic_id)
            if topic is not None and topic_id in members[member_id].topics and index < topic.partitions:
                owners.setdefault((topic_id, index), member_id)
    return owners


def _fill_to_quota(members: Candidates, topics: Mapping[UUID, TopicView], owners: dict[Partition, str]) -> None:
    """Assigns partitions where all members subscribe to the same topics: counts differ by at most one."""
    wanted = next(iter(members.values())).topics
    everything = [partition for partition in _all(topics) if partition[0] in wanted]
    least, extras = divmod(len(everything), len(members))
    shares = _shares(members, owners)
    # Members with most partitions get the one extra partition: this moves the fewest.
    row = sorted(members, key=lambda one: (-len(shares[one]), one))
    quota = {member_id: least + (place < extras) for place, member_id in enumerate(row)}
    for member_id in row:
        rack = members[member_id].rack
        share = sorted(shares[member_id], key=lambda one: (not _is_near(topics, one, rack), one))
        for partition in share[quota[member_id] :]:
            del owners[partition]
        quota[member_id] -= min(len(share), quota[member_id])
    free = [partition for partition in everything if partition not in owners]
    if any(topic.racks for topic in topics.values()):
        for partition in free:
            near = _nearest(members, topics, partition, [one for one in row if quota[one]])
            if near is not None:
                owners[partition] = near
                quota[near] -= 1
    # Round-robin, so that each topic is spread over all members.
    turns = deque(member_id for member_id in row if quota[member_id])
    for partition in free:
        if partition not in owners:
            member_id = turns.popleft()
            owners[partition] = member_id
            quota[member_id] -= 1
            if quota[member_id]:
                turns.append(member_id)


def _fill_by_load(members: Candidates, topics: Mapping[UUID, TopicView], owners: dict[Partition, str]) -> None:
    """Assigns partitions where subscriptions differ: each free partition goes to the subscriber with the fewest."""
    load = {member_id: len(share) for member_id, share in _shares(members, owners).items()}
    readers = _readers(members, topics)
    free = [partition for partition in _all(topics) if partition not in owners and readers[partition[0]]]
    for partition in sorted(free, key=lambda one: (len(readers[one[0]]), one)):
        lightest = min(load[one] for one in readers[partition[0]])
        ties = sorted(one for one in readers[partition[0]] if load[one] == lightest)
        owner = _nearest(members, topics, partition, ties) or ties[0]
        owners[partition] = owner
        load[owner] += 1


def _level(members: Candidates, owners: dict[Partition, str]) -> None:
    """Moves partitions from members with many to members with few, until no move helps.

    Each move narrows a gap, so it terminates.
    """
    load = {member_id: len(share) for member_id, share in _shares(members, owners).items()}
    readers = {topic: [one for one in sorted(members) if topic in members[one].topics] for topic, _ in owners}
    moved = True
    while moved:
        moved = False
        for partition, owner in list(owners.items()):
            lightest = min(readers[partition[0]], key=lambda one: load[one])
            if load[owner] > load[lightest] + 1:
                owners[partition] = lightest
                load[owner] -= 1
                load[lightest] += 1
                moved = True


def _nearest(
    members: Candidates, topics: Mapping[UUID, TopicView], partition: Partition, among: Iterable[str]
) -> str | None:
    if not topics[partition[0]].racks:
        return None
    return next((one for one in among if _is_near(topics, partition, members[one].rack)), None)


def _is_near(topics: Mapping[UUID, TopicView], partition: Partition, rack: str | None) -> bool:
    racks = topics[partition[0]].racks
    return rack is not None and bool(racks) and rack in racks[partition[1]]


def _readers(members: Candidates, topics: Mapping[UUID, TopicView]) -> dict[UUID, list[str]]:
    return {topic: [one for one in sorted(members) if topic in members[one].topics] for topic in topics}


def _shares(members: Candidates, owners: Mapping[Partition, str]) -> dict[str, list[Partition]]:
    shares: dict[str, list[Partition]] = {member_id: [] for member_id in members}
    for partition, owner in owners.items():
        shares[owner].append(partition)
    return shares


def _all(topics: Mapping[UUID, TopicView]) -> list[Partition]:
    return [(topic_id, index) for topic_id in sorted(topics) for index in range(topics[topic_id].partitions)]


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
