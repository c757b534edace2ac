"""Reassignment steps of one partition, and changes of several partitions in one commit.

A reassignment first adds the new replicas, which catch up, and then removes the old ones.

    (1 2 3)  → wanted (1 2 4) →  replicas (1 2 4 3), adding (4), removing (3), a new leader epoch
             → 4 is in sync   →  replicas (1 2 4)

The new leader epoch fences a replica that was removed shortly before. Its broker may not have applied the removal
yet: it fetches with the log that it is about to delete, and would join the ISR with it. The leader rejects those
fetches by their epoch, and a broker that has applied the new epoch has deleted the log.

One partition's state in, its next state out. `replica_placer.py` validates the target replicas. Pure; performs no
I/O.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from headrace.core.controller.leader_election import changed
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import NO_LEADER, Decision, PartitionRegistration, TopicImage
from headrace.model.errors import RequestError


def begun(state: PartitionRegistration, wanted: tuple[int, ...]) -> PartitionRegistration:
    """Returns the state with a reassignment to exactly `wanted`, whatever step an earlier reassignment had reached."""
    present = tuple(one for one in state.replicas if one not in state.adding)
    adding = tuple(one for one in wanted if one not in present)
    removing = tuple(one for one in present if one not in wanted)
    kept = (*wanted, *removing)
    isr = tuple(one for one in state.isr if one in kept)
    elr = tuple(one for one in state.elr if one in kept)
    # A replica that an earlier reassignment added and this one drops may be the last one with all records. It then
    # stays until another replica has them.
    if state.leader not in kept or not isr:
        holding = dict.fromkeys((*state.isr, *state.elr, state.last_leader))
        kept = (*kept, *(one for one in holding if one not in kept and one != NO_LEADER))
        removing = tuple(one for one in kept if one not in wanted)
        isr, elr = state.isr, state.elr
    new = changed(
        state,
        replicas=kept,
        isr=isr,
        elr=elr,
        adding=adding,
        removing=removing,
        lost=tuple(one for one in state.lost if one in kept),
    )
    if state.leader != NO_LEADER and not set(adding) <= set(state.adding):
        new = new._replace(leader_epoch=state.leader_epoch + 1)
    return settled(new)


def cancelled(state: PartitionRegistration) -> PartitionRegistration:
    """Returns the state with the replicas from before the reassignment."""
    return begun(state, tuple(one for one in state.replicas if one not in state.adding))


def settled(state: PartitionRegistration) -> PartitionRegistration:
    """Completes the reassignment once all target replicas are in sync: removes the others.

    Else returns the same state.
    """
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
    if new.leader not in wanted:  # leadership moves to a replica in the ISR
        new = new._replace(leader=next(one for one in wanted if one in isr), leader_epoch=state.leader_epoch + 1)
    return new


def is_moving(state: PartitionRegistration) -> bool:
    return bool(state.adding or state.removing)


Wish = TypeVar("Wish")


def change_wanted(
    wanted: Mapping[str, Mapping[int, Wish]],
    image: MetadataImage,
    change: Callable[[TopicImage, PartitionRegistration, Wish], PartitionRegistration],
) -> dict[str, Decision[int] | RequestError]:
    """Returns new states for the named partitions, each with the argument of its change.

    The row counts changed partitions. Topics and partitions that do not exist are skipped: a topic may have been
    re-created with fewer partitions.
    """
    decisions: dict[str, Decision[int] | RequestError] = {}
    for name, wishes in wanted.items():
        topic = image.topics.get(name)
        if topic is None:
            decisions[name] = Decision(0, {})
            continue
        states = list(topic.partitions)
        for index, wish in wishes.items():
            if index < len(states):
                states[index] = change(topic, states[index], wish)
        changed = [index for index, state in enumerate(states) if state != topic.partitions[index]]
        decisions[name] = Decision(len(changed), dict(records.block_writes(topic.topic_id, states, changed)))
    return decisions
