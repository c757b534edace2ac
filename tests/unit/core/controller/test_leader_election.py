"""Who leads, who may, and who is remembered: the states of one partition."""

import pytest

from headrace.core.controller.leader_election import (
    BrokerLiveness,
    ElectionConfig,
    bump_leader_epoch,
    fence_replica,
    preferred,
    succeeded,
    with_isr,
    without,
)
from headrace.core.controller.partition_change import begun, cancelled, settled
from headrace.core.image.model import NO_LEADER, PartitionRegistration

ONE, TWO = ElectionConfig(min_isr=1), ElectionConfig(min_isr=2)
STATE = PartitionRegistration(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=5, partition_epoch=7)


def live(*brokers: int, stopping: tuple[int, ...] = (), full: tuple[int, ...] = ()) -> BrokerLiveness:
    return BrokerLiveness(frozenset(brokers), frozenset(stopping), frozenset(full))


def test_nothing_changes_while_everybody_is_there() -> None:
    assert succeeded(STATE, live(1, 2, 3), TWO) is STATE


def test_a_follower_that_is_gone_leaves_the_isr_and_the_leader_stays() -> None:
    new = succeeded(STATE, live(1, 3), TWO)
    assert (new.isr, new.leader, new.leader_epoch, new.partition_epoch) == ((1, 3), 1, 5, 8)
    assert new.elr == (), "two are enough, so nothing is known of who left"


def test_rule_17_the_next_in_sync_replica_leads_in_a_new_epoch() -> None:
    new = succeeded(STATE, live(2, 3), TWO)
    assert (new.isr, new.leader, new.leader_epoch, new.partition_epoch) == ((2, 3), 2, 6, 8)


def test_who_leaves_an_isr_that_is_too_small_stays_eligible() -> None:
    new = succeeded(STATE._replace(isr=(1, 2)), live(1, 3), TWO)
    assert (new.isr, new.elr) == ((1,), (2,)), "3 was out before, and may lack records"
    gone = succeeded(new, live(3), TWO)
    assert (gone.isr, gone.elr, gone.leader, gone.leader_epoch) == ((), (1, 2), NO_LEADER, 6)
    back = succeeded(gone, live(2, 3), TWO)
    assert (back.isr, back.elr, back.leader, back.leader_epoch) == ((2,), (1,), 2, 7)


def test_the_last_in_sync_replica_is_waited_for() -> None:
    alone = succeeded(STATE._replace(isr=(1,)), live(2, 3), ONE)
    assert (alone.isr, alone.elr, alone.leader) == ((), (1,), NO_LEADER)
    assert succeeded(alone, live(2, 3), ONE) == alone, "nobody else may lead"
    assert succeeded(alone, live(1, 2, 3), ONE).leader == 1


def test_an_unclean_election_is_for_those_who_asked_for_it() -> None:
    alone = STATE._replace(isr=(1,))
    new = succeeded(alone, live(2, 3), ElectionConfig(min_isr=1, unclean=True))
    assert (new.leader, new.isr, new.elr) == (2, (2,), ())


def test_who_wants_to_stop_hands_over_if_it_can() -> None:
    new = succeeded(STATE, live(1, 2, 3, stopping=(1,)), TWO)
    assert (new.leader, new.isr) == (2, (2, 3))
    alone = STATE._replace(isr=(1,))
    assert succeeded(alone, live(1, 2, 3, stopping=(1,)), TWO) is alone


def test_full_broker_hands_over_to_replica_with_disk_space() -> None:
    new = succeeded(STATE, live(1, 2, 3, full=(1,)), TWO)
    assert (new.leader, new.isr) == (2, (2, 3))
    alone = STATE._replace(isr=(1,))
    assert succeeded(alone, live(1, 2, 3, full=(1,)), TWO) is alone


def test_full_broker_is_elected_when_no_other_can_lead() -> None:
    gone = succeeded(STATE._replace(replicas=(1,), isr=(1,)), live(), ONE)
    assert (gone.isr, gone.elr, gone.leader) == ((), (1,), NO_LEADER)
    back = succeeded(gone, live(1, full=(1,)), ONE)
    assert (back.isr, back.elr, back.leader, back.leader_epoch) == ((1,), (), 1, 7)
    lost = without(STATE._replace(replicas=(1,), isr=(1,)), 1, live(), ONE)
    assert succeeded(lost, live(1, full=(1,)), ONE).leader == 1, "the last leader"
    replaced = without(STATE._replace(replicas=(1,), isr=(1,)), 1, live(), ONE, lost_log=True)
    assert succeeded(replaced, live(1, full=(1,)), ONE).leader == 1, "the only replica, on an empty disk"


def test_broker_with_disk_space_is_elected_before_a_full_one() -> None:
    gone = STATE._replace(isr=(), elr=(1, 2), leader=NO_LEADER)
    assert succeeded(gone, live(1, 2, full=(1,)), TWO).leader == 2
    assert succeeded(gone, live(1, 2, full=(1, 2)), TWO).leader == 1


def test_in_sync_replicas_stay_when_all_disks_are_full() -> None:
    assert succeeded(STATE, live(1, 2, 3, full=(1, 2, 3)), TWO) is STATE
    taken_over = succeeded(STATE, live(2, 3, full=(2, 3)), TWO)
    assert (taken_over.leader, taken_over.isr) == (2, (2, 3))


def test_stopping_broker_hands_over_to_full_in_sync_replica() -> None:
    new = succeeded(STATE._replace(isr=(1, 2)), live(1, 2, full=(2,), stopping=(1,)), ONE)
    assert (new.leader, new.isr) == (2, (2,))


def test_stopping_broker_is_not_elected() -> None:
    gone = STATE._replace(isr=(), elr=(1, 2), leader=NO_LEADER)
    assert succeeded(gone, live(2, stopping=(2,)), TWO) is gone


def test_full_eligible_replica_is_elected_before_an_unclean_one() -> None:
    gone = STATE._replace(isr=(), elr=(1,), leader=NO_LEADER)
    unclean = ElectionConfig(min_isr=1, unclean=True)
    assert succeeded(gone, live(1, 2, full=(1,)), unclean).leader == 1
    assert succeeded(gone, live(2, 3, full=(2,)), unclean).leader == 3, "of unclean ones, first those with disk space"
    assert succeeded(gone, live(2, full=(2,)), unclean).leader == 2


def test_full_first_replica_is_not_preferred() -> None:
    state = STATE._replace(leader=2)
    assert preferred(state, live(1, 2, 3, full=(1,))) is state


def test_who_has_lost_records_is_eligible_for_nothing() -> None:
    new = without(STATE, 1, live(2, 3), TWO)
    assert (new.leader, new.isr, new.elr, new.leader_epoch, new.partition_epoch) == (2, (2, 3), (), 6, 8)
    follower = without(STATE, 3, live(1, 2), TWO)
    assert (follower.leader, follower.isr, follower.leader_epoch) == (1, (1, 2), 5)
    assert without(STATE._replace(isr=(1, 2)), 3, live(1, 2), TWO).isr == (1, 2)


def test_who_gives_up_its_copy_does_so_in_a_new_leader_epoch() -> None:
    assert fence_replica(STATE, 1, live(2, 3), TWO) == without(STATE, 1, live(2, 3), TWO), "a new leader has one anyway"
    follower = fence_replica(STATE, 3, live(1, 2), TWO)
    assert (follower.leader, follower.isr, follower.leader_epoch) == (1, (1, 2), 6)
    behind = fence_replica(STATE._replace(isr=(1, 2)), 3, live(1, 2), TWO)
    assert (behind.isr, behind.leader_epoch) == ((1, 2), 6), "also one that could have caught up a moment later"


def test_when_nobody_is_known_to_hold_everything_the_last_leader_may_come_back() -> None:
    lost = without(STATE._replace(replicas=(1,), isr=(1,)), 1, live(), ONE)
    assert (lost.leader, lost.isr, lost.elr, lost.last_leader) == (NO_LEADER, (), (), 1)
    back = succeeded(lost, live(1), ONE)
    assert (back.leader, back.isr, back.last_leader) == (1, (1,), NO_LEADER)


def test_a_broker_of_its_own_leads_on_in_a_new_epoch() -> None:
    assert without(STATE._replace(replicas=(1,), isr=(1,)), 1, live(1), ONE).leader_epoch == 6
    assert bump_leader_epoch(STATE)[2:5] == (1, 6, 8)


def test_the_first_replica_is_preferred_once_it_is_in_sync() -> None:
    state = STATE._replace(leader=2)
    assert preferred(state, live(1, 2, 3)).leader == 1
    assert preferred(state._replace(isr=(2, 3)), live(1, 2, 3)).leader == 2
    assert preferred(state, live(2, 3)) is state


@pytest.mark.parametrize(("isr", "elr"), [((1, 2), ()), ((1,), (2, 3)), ((), (1, 2, 3))])
def test_eligible_are_those_who_held_everything_when_the_watermark_stood_still(
    isr: tuple[int, ...], elr: tuple[int, ...]
) -> None:
    assert with_isr(STATE, isr, TWO).elr == elr


# Moving


def test_a_move_adds_first_and_removes_when_the_new_ones_are_in_sync() -> None:
    moving = begun(STATE, (1, 2, 4))
    assert (moving.replicas, moving.adding, moving.removing) == ((1, 2, 4, 3), (4,), (3,))
    assert settled(moving) == moving
    done = settled(moving._replace(isr=(1, 2, 3, 4)))
    assert (done.replicas, done.isr, done.adding, done.removing) == ((1, 2, 4), (1, 2, 4), (), ())


def test_a_leader_that_moves_away_hands_over() -> None:
    moving = begun(STATE, (2, 3, 4))
    done = settled(moving._replace(isr=(1, 2, 3, 4)))
    assert (done.leader, done.leader_epoch, done.replicas) == (2, moving.leader_epoch + 1, (2, 3, 4))


def test_a_move_can_be_taken_back() -> None:
    back = cancelled(begun(STATE, (1, 2, 4)))
    assert (back.replicas, back.adding, back.removing) == ((1, 2, 3), (), ())


def test_replica_that_is_added_begins_in_a_new_leader_epoch() -> None:
    """Its broker may still fetch with the log of an earlier replica, which it deletes when it learns of the removal."""
    removed = begun(STATE, (1, 2))
    assert removed.leader_epoch == STATE.leader_epoch
    added = begun(removed, (3, 1, 2))
    assert (added.leader, added.leader_epoch, added.adding) == (1, STATE.leader_epoch + 1, (3,))
    more = begun(added, (3, 1, 2, 4))
    assert more.leader_epoch == added.leader_epoch + 1
    assert begun(more, (4, 3, 1, 2)).leader_epoch == more.leader_epoch, "both were added before"
    assert begun(cancelled(added), (1, 2, 3)).leader_epoch == added.leader_epoch + 1


@pytest.mark.parametrize("field", ["isr", "elr", "last_leader"])
def test_cancelled_move_keeps_the_replica_that_has_all_records(field: str) -> None:
    """The added replica was the last one in sync, and its broker is away: the others lack records."""
    only = {"isr": (), "elr": (), "last_leader": NO_LEADER, field: 4 if field == "last_leader" else (4,)}
    moving = begun(STATE, (4, 5))._replace(leader=4 if field == "isr" else NO_LEADER, **only)
    back = cancelled(moving)
    assert back.replicas == (1, 2, 3, 4)
    assert (back.isr, back.elr, back.last_leader) == (moving.isr, moving.elr, moving.last_leader)
    assert succeeded(back, live(1, 2, 3, 4), TWO).leader == 4
    assert settled(back._replace(isr=(1, 4))).replicas == (1, 2, 3)


def test_another_order_of_the_same_brokers_is_done_at_once() -> None:
    assert begun(STATE, (3, 2, 1))[:2] == ((3, 2, 1), (1, 2, 3))
