"""Leader election rules: one partition's state in, its next state out.

The rules are Kafka's, with KIP-966. A replica in the ISR has every committed record. So does a replica in the ELR
(*eligible leader replicas*): the high watermark does not advance while the ISR is smaller than `min.insync.replicas`,
and only then do replicas move from the ISR to the ELR. No other replica is elected, unless the topic allows unclean
elections. When both sets are empty, the last leader is the best candidate, and it may come back.

A broker whose disk is full keeps serving reads and deletions. It leads only where no eligible replica with enough
disk space can: a partition that rejects records is better than one without a leader, which cannot be read, and whose
records cannot be deleted to free space. A broker that is shutting down is never elected; it would serve for
milliseconds.

Every state change raises the partition epoch. Every election raises the leader epoch, also if the same replica is
elected again.

Pure; performs no I/O. `replication_control.py` applies these rules to topics of the metadata image.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from headrace.core.image.model import NO_LEADER, PartitionRegistration


class ElectionConfig(NamedTuple):
    """Topic configs that an election depends on."""

    min_isr: int
    unclean: bool = False  # whether a replica that lacks committed records may be elected


class BrokerLiveness(NamedTuple):
    """Liveness of the brokers, as the metadata has it."""

    live: Collection[int]
    stopping: Collection[int] = ()  # live, but shutting down
    full: Collection[int] = ()  # live, but without enough disk space for records

    def can_lead(self, broker: int) -> bool:
        return broker in self.live and broker not in self.stopping and broker not in self.full

    def can_lead_as_last_choice(self, broker: int) -> bool:
        """Returns whether the broker can lead, with a full disk too: it then serves reads and deletions."""
        return broker in self.live and broker not in self.stopping

    def without(self, broker: int) -> "BrokerLiveness":
        return self._replace(live=frozenset(self.live) - {broker})


def with_isr(
    state: PartitionRegistration, isr: Iterable[int], rules: ElectionConfig, lost: Collection[int] = ()
) -> PartitionRegistration:
    """Returns the state with another ISR.

    Replicas that leave an ISR below its minimum join the ELR, except for those whose data is `lost`.
    """
    present = tuple(isr)
    elr: tuple[int, ...] = ()
    if len(present) < min(rules.min_isr, len(state.replicas)):
        # In replica order, so that equal sets make equal states.
        held = {*state.elr, *state.isr} - {*present, *lost}
        elr = tuple(broker for broker in state.replicas if broker in held)
    return changed(state, isr=present, elr=elr, lost=tuple(one for one in state.lost if one not in present))


def changed(state: PartitionRegistration, **fields: object) -> PartitionRegistration:
    """Returns the state with these fields, and a higher partition epoch if anything changed."""
    new = state._replace(**fields)  # type: ignore[arg-type]
    return new if new == state else new._replace(partition_epoch=state.partition_epoch + 1)


def succeeded(state: PartitionRegistration, condition: BrokerLiveness, rules: ElectionConfig) -> PartitionRegistration:
    """Returns the state without unavailable replicas in the ISR, and with a leader if one is electable.

    Returns the same state if nothing changes.
    """
    staying = tuple(broker for broker in state.isr if condition.can_lead(broker))
    if not staying:  # the disks of all in-sync replicas are full: keep them all
        staying = tuple(broker for broker in state.isr if condition.can_lead_as_last_choice(broker))
    if not staying and state.leader in state.isr and state.leader in condition.live:
        staying = (state.leader,)  # it is shutting down and no other replica can lead: it stays until its session ends
    new = with_isr(state, staying, rules) if staying != state.isr else state
    if new.leader in staying:
        return new
    return _led_by_the_next(new, state.partition_epoch, condition, rules)


def _led_by_the_next(
    state: PartitionRegistration, epoch_before: int, condition: BrokerLiveness, rules: ElectionConfig
) -> PartitionRegistration:
    leader = _next_leader(state, condition, rules)
    if leader == state.leader == NO_LEADER:
        return state
    isr, elr, last_leader = state.isr, state.elr, state.last_leader
    if leader == NO_LEADER:
        last_leader = state.leader
    elif leader in isr:
        last_leader = NO_LEADER
    else:
        is_eligible = leader in elr
        isr = (leader,)
        elr = tuple(one for one in elr if one != leader) if is_eligible and rules.min_isr > 1 else ()
        last_leader = NO_LEADER
    return state._replace(
        leader=leader,
        isr=isr,
        elr=elr,
        last_leader=last_leader,
        lost=tuple(one for one in state.lost if one != leader),
        leader_epoch=state.leader_epoch + 1,
        partition_epoch=epoch_before + 1,
    )


def _next_leader(state: PartitionRegistration, condition: BrokerLiveness, rules: ElectionConfig) -> int:
    for can_lead in (condition.can_lead, condition.can_lead_as_last_choice):
        leader = _clean_leader(state, can_lead)
        if leader != NO_LEADER:
            return leader
    # The only replica: no other one has the records that it lost.
    if rules.unclean or state.lost == state.replicas[:1] == state.replicas:
        return _unclean_leader(state, condition)
    return NO_LEADER


def _clean_leader(state: PartitionRegistration, can_lead: Callable[[int], bool]) -> int:
    for eligible in (state.isr, state.elr):
        for broker in state.replicas:
            if broker in eligible and can_lead(broker):
                return broker
    nobody_is_known = not state.isr and not state.elr and state.last_leader in state.replicas
    return state.last_leader if nobody_is_known and can_lead(state.last_leader) else NO_LEADER


def _unclean_leader(state: PartitionRegistration, condition: BrokerLiveness) -> int:
    """Returns the replica that loses the fewest records, and among equals the first that has disk space.

    A replica that lost its log, or is being added, is elected only if no other can be.
    """
    able = [broker for broker in state.replicas if condition.can_lead_as_last_choice(broker)]

    def cost(broker: int) -> tuple[bool, bool]:
        return broker in state.lost or broker in state.adding, not condition.can_lead(broker)

    return min(able, key=cost, default=NO_LEADER)


def preferred(state: PartitionRegistration, condition: BrokerLiveness) -> PartitionRegistration:
    """Returns the state led by the preferred leader, if it is in the ISR and can lead; else the same state."""
    first = state.replicas[0]
    if first == state.leader or first not in state.isr or not condition.can_lead(first):
        return state
    return state._replace(leader=first, leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1)


def led_above(state: PartitionRegistration, broker: int, epoch: int) -> PartitionRegistration:
    """Returns the state with the same leader and ISR in a leader epoch above `epoch`; else the same state."""
    if state.leader != broker or state.leader_epoch > epoch:
        return state
    return state._replace(leader_epoch=epoch + 1, partition_epoch=state.partition_epoch + 1)


def without(
    state: PartitionRegistration,
    broker: int,
    condition: BrokerLiveness,
    rules: ElectionConfig,
    *,
    lost_log: bool = False,
) -> PartitionRegistration:
    """Returns the state after a replica was found to lack records that it had acknowledged.

    The replica is in neither ISR nor ELR. If it was the last one in them and lacks only the end of its log, it
    becomes the last leader: its log is then the most complete one. A replica that lost its whole log (`lost_log`: a
    replaced disk) is never the last leader. Other replicas would truncate their logs to its empty one, so the
    partition stays without a leader until an unclean election is requested.
    """
    if not state.is_electable(broker):
        is_known = broker not in state.replicas or broker in state.lost
        return _with_lost_log(state, broker) if lost_log and not is_known else state
    new = with_isr(state, (one for one in state.isr if one != broker), rules, lost=(broker,))
    new = new._replace(elr=tuple(one for one in new.elr if one != broker))
    led_until_now = new.leader == broker
    if led_until_now:
        new = new._replace(leader=NO_LEADER, last_leader=broker)
    elif not new.isr and not new.elr and new.last_leader == NO_LEADER:
        new = new._replace(last_leader=broker)
    if lost_log:
        new = _with_lost_log(new, broker)
    led = succeeded(new, condition, rules)
    return led._replace(
        leader_epoch=max(led.leader_epoch, state.leader_epoch + led_until_now),
        partition_epoch=state.partition_epoch + 1,
    )


def _with_lost_log(state: PartitionRegistration, broker: int) -> PartitionRegistration:
    return state._replace(
        last_leader=NO_LEADER if state.last_leader == broker else state.last_leader,
        lost=tuple(one for one in state.replicas if one in state.lost or one == broker),
        partition_epoch=state.partition_epoch + 1,
    )


def fence_replica(
    state: PartitionRegistration,
    broker: int,
    condition: BrokerLiveness,
    rules: ElectionConfig,
    *,
    lost_log: bool = False,
) -> PartitionRegistration:
    """Returns the state in which a replica may discard its log.

    The replica is in neither ISR nor ELR, and the leader epoch is new. A leader in the new epoch has no fetch offset
    of the replica, and the replica's earlier fetches are fenced. Its log is therefore not taken for a complete one.
    """
    new = without(state, broker, condition, rules, lost_log=lost_log)
    return new if new.leader_epoch > state.leader_epoch else bump_leader_epoch(new)


def bump_leader_epoch(state: PartitionRegistration) -> PartitionRegistration:
    """Returns the same leader in a new epoch.

    Records that it had not synced may be gone, and new ones take their offsets.
    """
    return state._replace(leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1)
