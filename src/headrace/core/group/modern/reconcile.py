"""One member's next step from what it holds towards its target.

A partition has one owner at a time: a member first gives up what it must, then enters the target's epoch, then gets
each new partition as soon as its owner before has let go.
"""

from collections.abc import Callable
from uuid import UUID

from headrace.core.group.modern.partitions import difference, intersection, overlap, select, union
from headrace.core.group.modern.values import NO_PARTITIONS, Holding, MemberState, Partitions

IsFree = Callable[[UUID, int], bool]  # nobody else holds it


def reconciled(
    holding: Holding, target: Partitions, target_epoch: int, owned: Partitions | None, is_free: IsFree
) -> Holding:
    """What the member holds after it has reported `owned`; None where it says that nothing has changed."""
    if holding.state is MemberState.STABLE and holding.epoch == target_epoch:
        return holding
    if holding.state is MemberState.UNREVOKED:
        if _still_has(holding.revoking, owned):
            return holding
        # It has let go: that alone takes it one epoch further, so that its late commits can be told from earlier ones.
        return _step(holding.moved_to(holding.epoch + 1), target, target_epoch, owned, is_free)
    return _step(holding, target, target_epoch, owned, is_free)


def _step(
    holding: Holding, target: Partitions, target_epoch: int, owned: Partitions | None, is_free: IsFree
) -> Holding:
    kept = intersection(holding.assigned, target)
    surplus = difference(holding.assigned, kept)
    if surplus and _still_has(surplus, owned):
        return holding._replace(state=MemberState.UNREVOKED, assigned=kept, revoking=surplus)
    wanted = difference(target, kept)
    available = select(wanted, is_free)
    state = MemberState.STABLE if available == wanted else MemberState.UNRELEASED
    return holding.moved_to(target_epoch)._replace(state=state, assigned=union(kept, available), revoking=NO_PARTITIONS)


def _still_has(partitions: Partitions, owned: Partitions | None) -> bool:
    """A member that does not say what it owns owns what it owned."""
    return owned is None or overlap(owned, partitions)
