"""A replica that lost its log (a replaced disk) is never elected while another replica may hold committed records.

The exhaustive test walks through every history of a small partition: brokers stop, return, return with an empty disk,
run out of disk space and get some, shut down, followers leave and join the ISR, records are committed.
"""

from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple
from uuid import UUID

import pytest

from headrace.core.controller import replication_control
from headrace.core.controller.leader_election import (
    BrokerLiveness,
    ElectionConfig,
    fence_replica,
    succeeded,
    with_isr,
    without,
)
from headrace.core.controller.partition_change import begun
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import NO_LEADER, Decision, PartitionRegistration

ONE, TWO = ElectionConfig(min_isr=1), ElectionConfig(min_isr=2)
PAIR = PartitionRegistration(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=5, partition_epoch=7)
COMMITS_MAX = 2  # enough to tell an empty log, an outdated one and a complete one apart


def live(*brokers: int) -> BrokerLiveness:
    return BrokerLiveness(frozenset(brokers))


def test_replaced_disk_of_last_isr_member_leaves_no_leader() -> None:
    lost = without(PAIR, 1, live(), ONE, lost_log=True)
    assert (lost.leader, lost.isr, lost.elr, lost.last_leader, lost.lost) == (NO_LEADER, (), (), NO_LEADER, (1,))
    assert lost.leader_epoch == 6
    assert succeeded(lost, live(1), ONE) == lost
    assert succeeded(lost, live(1, 2), ONE) == lost


def test_replaced_disk_of_last_leader_is_not_elected() -> None:
    lost_end = without(PAIR, 1, live(), ONE)
    assert lost_end.last_leader == 1
    lost_all = without(lost_end, 1, live(), ONE, lost_log=True)
    assert succeeded(lost_all, live(1, 2), ONE).leader == NO_LEADER


def test_unclean_election_prefers_replica_that_kept_its_log() -> None:
    lost = without(PAIR, 1, live(), ONE, lost_log=True)
    new = succeeded(lost, live(1, 2), ONE._replace(unclean=True))
    assert (new.leader, new.isr, new.lost) == (2, (2,), (1,))
    assert with_isr(new, (2, 1), ONE).lost == (), "it caught up"
    alone = succeeded(lost, live(1), ONE._replace(unclean=True))
    assert (alone.leader, alone.lost) == (1, ()), "the operator asked for it"


def test_unclean_election_prefers_replica_that_is_not_added() -> None:
    moving = begun(PAIR._replace(isr=(), leader=NO_LEADER), (3, 2))
    assert moving.replicas[0] == 3
    assert succeeded(moving, live(2, 3), ONE._replace(unclean=True)).leader == 2


def test_only_replica_leads_again_after_its_disk_was_replaced() -> None:
    single = PAIR._replace(replicas=(1,))
    lost = without(single, 1, live(), ONE, lost_log=True)
    assert (lost.leader, lost.lost) == (NO_LEADER, (1,))
    assert succeeded(lost, live(1), ONE)[:3] == ((1,), (1,), 1)


def test_follower_with_replaced_disk_changes_nothing_twice() -> None:
    once = without(PAIR, 2, live(1), ONE, lost_log=True)
    assert (once.lost, once.leader, once.partition_epoch) == ((2,), 1, 8)
    assert without(once, 2, live(1), ONE, lost_log=True) is once


def test_damaged_empty_replica_does_not_stay_leader() -> None:
    left = fence_replica(PAIR, 1, live(2), ONE, lost_log=True)
    assert (left.leader, left.last_leader, left.lost, left.leader_epoch) == (NO_LEADER, NO_LEADER, (1,), 6)


def test_lost_replicas_are_stored_and_old_rows_are_read() -> None:
    lost = without(PAIR, 1, live(), ONE, lost_log=True)

    (value,) = records.block_writes(UUID(int=1), [lost, PAIR], [0]).values()
    assert records.decode_block(value) == [lost, PAIR]
    assert records.decode_block(b"[[1,5,7,[1,2],[1],[2],-1,[],[]]]")[0].lost == ()


def test_return_with_another_disk_concerns_every_replica() -> None:

    image, topic_id = MetadataImage(), UUID(int=1)
    states = [PAIR._replace(isr=(2,), leader=2), PAIR]
    image.apply(
        1, {records.topic_key("t"): records.encode_topic(topic_id, {}), **records.block_writes(topic_id, states, [0])}
    )
    assert replication_control.topics_held_by(image, 1, lost_log=True) == ["t"]
    outcome = replication_control.handle_unclean_restart(
        ["t"], image, 1, live(), lambda _: ONE, lambda _: False, lost_log=True
    )["t"]
    assert isinstance(outcome, Decision)
    (value,) = outcome.writes.values()
    assert value is not None
    assert [(one.leader, one.lost) for one in records.decode_block(value)] == [(2, (1,)), (NO_LEADER, (1,))]


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
@pytest.mark.parametrize("rules", [ONE, TWO])
def test_last_of_several_empty_replicas_leads(order: tuple[int, ...], rules: ElectionConfig) -> None:
    """After a crash of all hosts, before the first record: none of them knows whether another one holds more."""
    image, topic_id = MetadataImage(), UUID(int=1)
    states = [PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 5, 7)]
    writes = {records.topic_key("t"): records.encode_topic(topic_id, {}), **records.block_writes(topic_id, states, [0])}
    image.apply(1, writes)
    for revision, broker in enumerate(order, 2):
        rows = replication_control.resign(
            {"t": [0]}, image, broker, live(), lambda _: rules, to_copy_anew=True, holds_nothing=True, unless_last=True
        )
        outcome = rows["t"]
        assert isinstance(outcome, Decision)
        image.apply(revision, outcome.writes)
    (state,) = image.topics["t"].partitions
    *left, last = order
    assert set(state.lost) == set(left)
    assert succeeded(state, live(1, 2, 3), rules).leader == last


class World(NamedTuple):
    """One partition: its committed state, which brokers live, and how many committed records each log holds."""

    state: PartitionRegistration
    live: frozenset[int]
    holds: tuple[int, ...]
    committed: int = 0
    full: frozenset[int] = frozenset()
    stopping: frozenset[int] = frozenset()

    @property
    def condition(self) -> BrokerLiveness:
        return BrokerLiveness(self.live, self.stopping, self.full)

    def gone(self, broker: int) -> "World":
        one = frozenset({broker})
        return self._replace(live=self.live - one, full=self.full - one, stopping=self.stopping - one)

    def returned(self, broker: int, is_full: bool) -> "World":
        one = frozenset({broker})
        return self._replace(live=self.live | one, full=self.full | one if is_full else self.full)

    def held_by(self, broker: int) -> int:
        return self.holds[broker - 1]

    def with_log(self, broker: int, records: int) -> "World":
        return self._replace(holds=(*self.holds[: broker - 1], records, *self.holds[broker:]))


def _elected(world: World, rules: ElectionConfig) -> World:
    return world._replace(state=succeeded(world.state, world.condition, rules))


def _with_other_brokers(world: World, rules: ElectionConfig) -> Iterator[World]:
    """A broker dies, begins to shut down, returns with its log or without, or its disk fills up or is freed."""
    for broker in world.state.replicas:
        one = frozenset({broker})
        if broker not in world.live:
            for is_full in (False, True):
                yield _elected(world.returned(broker, is_full), rules)
                lost = without(world.state, broker, world.condition, rules, lost_log=True)
                empty = world.with_log(broker, 0)._replace(state=lost)
                if len(world.state.replicas) == 1:
                    empty = empty._replace(committed=0)  # no other replica held any of it
                yield _elected(empty.returned(broker, is_full), rules)
            continue
        yield _elected(world.gone(broker), rules)
        if broker not in world.stopping:
            yield _elected(world._replace(full=world.full ^ one), rules)
            yield _elected(world._replace(full=world.full - one, stopping=world.stopping | one), rules)


def _next_worlds(world: World, rules: ElectionConfig) -> Iterator[World]:
    yield from _with_other_brokers(world, rules)
    state = world.state
    if state.leader == NO_LEADER:
        return
    end = world.held_by(state.leader)
    if len(state.isr) >= min(rules.min_isr, len(state.replicas)) and not state.elr and end < COMMITS_MAX:
        more = world._replace(committed=end + 1)
        for broker in state.isr:
            more = more.with_log(broker, end + 1)
        yield more
    for broker in state.replicas:
        if broker == state.leader or broker not in world.live:
            continue
        if broker in state.isr:
            yield world._replace(state=with_isr(state, [one for one in state.isr if one != broker], rules))
        else:
            copied = world.with_log(broker, end)
            yield copied
            if not world.condition.can_lead(broker):
                continue
            joined = [one for one in state.replicas if one in state.isr or one == broker]
            yield copied._replace(state=with_isr(state, joined, rules))


def _check_leader(before: World, after: World) -> None:
    state, condition = after.state, after.condition
    eligible = {*state.isr, *state.elr}
    if state.leader == NO_LEADER:
        assert not any(map(condition.can_lead_as_last_choice, eligible)), "one of them could serve reads"
        return
    assert after.held_by(state.leader) >= after.committed
    if after.condition == before.condition:
        return  # no election
    if not condition.can_lead(state.leader):
        assert not any(map(condition.can_lead, state.isr)), "an in-sync replica can lead"
    if state.leader != before.state.leader:
        assert state.leader not in condition.stopping
        if state.leader in condition.full:
            assert not any(map(condition.can_lead, eligible)), "a replica with disk space can lead"


@pytest.mark.parametrize(("brokers", "rules"), [(1, ONE), (2, ONE), (2, TWO), (3, ONE), (3, TWO)])
def test_no_history_elects_a_replica_without_committed_records(brokers: int, rules: ElectionConfig) -> None:
    """Nor leaves a partition without a leader that an eligible broker with a full disk could serve."""
    replicas = tuple(range(1, brokers + 1))
    first = World(PartitionRegistration(replicas, replicas, 1, 0, 0), frozenset(replicas), (0,) * brokers)
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        for one in _next_worlds(world, rules):
            _check_leader(world, one)
            plain = one._replace(state=one.state._replace(leader_epoch=0, partition_epoch=0))
            if plain not in seen:
                seen.add(plain)
                waiting.append(plain)
    assert len(seen) > 10**brokers
