"""Reconciliation of a member's current assignment with its target assignment.

A partition has one owner at a time: a member first revokes partitions that are not in its target, then enters the
target's epoch, then gets each new partition as soon as its previous owner has released it.

Mappings contain no empty sets.
"""

from collections.abc import Callable, Iterable
from uuid import UUID

from headrace.core.group.consumer.model import NO_PARTITIONS, CurrentAssignment, MemberState, Partitions


def union(one: Partitions, other: Partitions) -> Partitions:
    return {topic: one.get(topic, frozenset()) | other.get(topic, frozenset()) for topic in {**one, **other}}


def intersection(one: Partitions, other: Partitions) -> Partitions:
    return _without_empty((topic, indexes & other.get(topic, frozenset())) for topic, indexes in one.items())


def difference(one: Partitions, other: Partitions) -> Partitions:
    return _without_empty((topic, indexes - other.get(topic, frozenset())) for topic, indexes in one.items())


def select(one: Partitions, accepts: Callable[[UUID, int], bool]) -> Partitions:
    return _without_empty(
        (topic, frozenset(index for index in indexes if accepts(topic, index))) for topic, indexes in one.items()
    )


def overlap(one: Partitions, other: Partitions) -> bool:
    return any(not indexes.isdisjoint(other.get(topic, frozenset())) for topic, indexes in one.items())


def is_within(one: Partitions, other: Partitions) -> bool:
    return all(indexes <= other.get(topic, frozenset()) for topic, indexes in one.items())


def gathered(pairs: Iterable[tuple[UUID, int]]) -> Partitions:
    indexes: dict[UUID, set[int]] = {}
    for topic, index in pairs:
        indexes.setdefault(topic, set()).add(index)
    return {topic: frozenset(found) for topic, found in indexes.items()}


def pairs(partitions: Partitions) -> Iterable[tuple[UUID, int]]:
    return ((topic, index) for topic, indexes in partitions.items() for index in indexes)


def _without_empty(rows: Iterable[tuple[UUID, frozenset[int]]]) -> Partitions:
    return {topic: indexes for topic, indexes in rows if indexes}


IsFree = Callable[[UUID, int], bool]  # no other member owns it


def reconciled(
    holding: CurrentAssignment, target: Partitions, target_epoch: int, owned: Partitions | None, is_free: IsFree
) -> CurrentAssignment:
    """Returns the member's current assignment after it reported `owned`; None means that `owned` has not changed."""
    if holding.state is MemberState.STABLE and holding.epoch == target_epoch:
        return holding
    if holding.state is MemberState.UNREVOKED:
        if _still_has(holding.revoking, owned):
            return holding
        # The revocation alone raises the member's epoch, so that its late commits are distinguishable from earlier
        # ones.
        return _step(holding.moved_to(holding.epoch + 1), target, target_epoch, owned, is_free)
    return _step(holding, target, target_epoch, owned, is_free)


def _step(
    holding: CurrentAssignment, target: Partitions, target_epoch: int, owned: Partitions | None, is_free: IsFree
) -> CurrentAssignment:
    kept = intersection(holding.assigned, target)
    surplus = difference(holding.assigned, kept)
    if surplus and _still_has(surplus, owned):
        return holding._replace(state=MemberState.UNREVOKED, assigned=kept, revoking=surplus)
    wanted = difference(target, kept)
    available = select(wanted, is_free)
    state = MemberState.STABLE if available == wanted else MemberState.UNRELEASED
    return holding.moved_to(target_epoch)._replace(state=state, assigned=union(kept, available), revoking=NO_PARTITIONS)


def _still_has(partitions: Partitions, owned: Partitions | None) -> bool:
    """Returns whether the member still owns some of the partitions.

    A member that does not report `owned` owns the same as before.
    """
    return owned is None or overlap(owned, partitions)
