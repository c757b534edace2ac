"""Plans reassignments: drains a broker, and balances replicas and leaders over brokers.

Pure arithmetic on lists of broker ids: the current assignment in, changed assignments out. Moves as few replicas as
possible. Two replicas of a partition never come to share a rack that they did not share before.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.model.errors import RequestError
from headrace.model.ids import TopicPartition

Replicas = tuple[int, ...]
Assignment = Mapping[TopicPartition, Replicas]
Racks = Mapping[int, str | None]  # of the brokers that may hold replicas


class TooFewBrokers(RequestError):
    """The remaining brokers cannot hold all replicas."""


class Loads:
    """Counts each broker's replicas, and the partitions that it is the preferred leader of."""

    def __init__(self, assignment: Iterable[Replicas], brokers: Iterable[int]) -> None:
        self.replicas: Counter[int] = Counter(dict.fromkeys(brokers, 0))
        self.leaders: Counter[int] = Counter(dict.fromkeys(self.replicas, 0))
        for replicas in assignment:
            self.replicas.update(replicas)
            self.leaders[replicas[0]] += 1

    def moved(self, before: Replicas, after: Replicas) -> None:
        self.replicas.subtract(before)
        self.replicas.update(after)
        self.leaders[before[0]] -= 1
        self.leaders[after[0]] += 1


def drained(current: Assignment, leaving: int, racks: Racks) -> dict[TopicPartition, Replicas]:
    """Returns the assignments to change so that `leaving` holds no replica. `racks` has the brokers that stay."""
    loads = Loads(current.values(), racks)
    changes: dict[TopicPartition, Replicas] = {}
    for place, replicas in sorted(current.items()):
        if leaving not in replicas:
            continue
        heirs = [one for one in racks if one not in replicas]
        if not heirs:
            raise TooFewBrokers(
                f"{place} has {len(replicas)} replicas, and only {len(racks)} brokers would be left: add a broker"
                " first, or reassign the topic to fewer replicas"
            )
        heir = _heir(heirs, [one for one in replicas if one != leaving], loads, racks)
        changes[place] = tuple(heir if one == leaving else one for one in replicas)
        loads.moved(replicas, changes[place])
    return changes


def _heir(heirs: Iterable[int], others: Sequence[int], loads: Loads, racks: Racks) -> int:
    """Returns the broker for a moved replica: in a rack of its own if possible, then the least loaded."""
    return min(heirs, key=lambda one: (_shares_rack(one, others, racks), loads.replicas[one], loads.leaders[one], one))


def balanced(current: Assignment, racks: Racks) -> dict[TopicPartition, Replicas]:
    """Returns the assignments to change so that the brokers' loads are even.

    Replica counts, and counts of preferred leaders, then differ by at most one.
    """
    target = dict(current)
    loads = Loads(current.values(), racks)
    while (change := next(_replica_moves(target, loads, racks), None)) is not None:
        _apply(target, loads, *change)
    while (change := next(_leader_moves(target, loads), None)) is not None:
        _apply(target, loads, *change)
    return {place: replicas for place, replicas in target.items() if replicas != current[place]}


def _apply(target: dict[TopicPartition, Replicas], loads: Loads, place: TopicPartition, after: Replicas) -> None:
    loads.moved(target[place], after)
    target[place] = after


def _replica_moves(target: Assignment, loads: Loads, racks: Racks) -> Iterator[tuple[TopicPartition, Replicas]]:
    """Yields moves of single replicas between brokers whose counts differ by at least two.

    Each move reduces the imbalance.
    """
    by_load = sorted(racks, key=lambda one: (loads.replicas[one], one))
    for giver in reversed(by_load):
        for taker in by_load:
            if loads.replicas[giver] - loads.replicas[taker] < 2:
                break
            for place, replicas in sorted(target.items()):
                if giver in replicas and taker not in replicas and _may_replace(giver, taker, replicas, racks):
                    yield place, tuple(taker if one == giver else one for one in replicas)


def _leader_moves(target: Assignment, loads: Loads) -> Iterator[tuple[TopicPartition, Replicas]]:
    """Yields assignments with another preferred leader. No data is moved."""
    for place, replicas in sorted(target.items()):
        heir = min(replicas, key=lambda one: (loads.leaders[one], one))
        if loads.leaders[replicas[0]] - loads.leaders[heir] >= 2:
            yield place, (heir, *(one for one in replicas if one != heir))


def _may_replace(giver: int, taker: int, replicas: Sequence[int], racks: Racks) -> bool:
    others = [one for one in replicas if one != giver]
    return not _shares_rack(taker, others, racks) or _shares_rack(giver, others, racks)


def _shares_rack(broker: int, others: Iterable[int], racks: Racks) -> bool:
    """Brokers without a rack each count as a rack of their own."""
    rack = racks.get(broker)
    return rack is not None and any(racks.get(one) == rack for one in others)
