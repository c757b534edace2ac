"""Moving replicas: first the new ones are added and catch up, then the old ones leave.

    (1 2 3)  → wanted (1 2 4) →  replicas (1 2 4 3), adding (4), removing (3)
             → 4 is in sync   →  replicas (1 2 4)

One partition's state in, its next state out. What may be wanted is `assignments.py`'s business.
"""

from headrace.core.cluster.succession import changed
from headrace.core.cluster.values import PartitionState


def begun(state: PartitionState, wanted: tuple[int, ...]) -> PartitionState:
    """On the way to hold exactly the wanted replicas, from wherever an earlier move had come to."""
    present = tuple(one for one in state.replicas if one not in state.adding)
    adding = tuple(one for one in wanted if one not in present)
    removing = tuple(one for one in present if one not in wanted)
    kept = (*wanted, *removing)
    isr = tuple(one for one in state.isr if one in kept)
    elr = tuple(one for one in state.elr if one in kept)
    # Whoever drops out with an earlier move's additions may be the last in sync: then the move stands as it is.
    if state.leader not in kept or not isr:
        kept = (*kept, *(one for one in state.isr if one not in kept))
        removing = tuple(one for one in kept if one not in wanted)
        isr, elr = state.isr, state.elr
    lost = tuple(one for one in state.lost if one in kept)
    return settled(changed(state, replicas=kept, isr=isr, elr=elr, adding=adding, removing=removing, lost=lost))


def cancelled(state: PartitionState) -> PartitionState:
    """Back to the replicas from before the move."""
    return begun(state, tuple(one for one in state.replicas if one not in state.adding))


def settled(state: PartitionState) -> PartitionState:
    """The move is done once everybody wanted is in sync: the others leave. Else the same state."""
    if not state.adding and not state.removing:
        return state
    wanted = tuple(one for one in state.replicas if one not in state.removing)
    isr = tuple(one for one in state.isr if one in wanted)
    if not isr or any(one not in isr for one in state.adding):
        return state
    new = changed(
        state,
        replicas=wanted,
        isr=isr,
        elr=tuple(one for one in state.elr if one in wanted),
        adding=(),
        removing=(),
        lost=tuple(one for one in state.lost if one in wanted),
    )
    if new.leader not in wanted:  # it hands over to one who is in sync
        new = new._replace(leader=next(one for one in wanted if one in isr), leader_epoch=state.leader_epoch + 1)
    return new


def is_moving(state: PartitionState) -> bool:
    return bool(state.adding or state.removing)
