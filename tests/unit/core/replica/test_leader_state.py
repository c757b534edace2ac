"""What a leader makes of its followers' fetches."""

from headrace.core.image.model import PartitionRegistration
from headrace.core.replica.leader_state import LeaderState, PendingIsr

STATE = PartitionRegistration(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=7)
LAG_MS = 1000


def leadership(state: PartitionRegistration = STATE, start: int = 0) -> LeaderState:
    return LeaderState(1, state, start, now_ms=0)


def proposal(
    leader: LeaderState, *, end: int = 10, watermark: int = 10, now_ms: int = 0, min_isr: int = 1
) -> PendingIsr | None:
    return leader.proposal(end, watermark, min_isr, now_ms, LAG_MS, lambda broker, epoch: True)


def test_the_watermark_is_where_everybody_in_sync_has_come() -> None:
    leader = leadership()
    assert leader.watermark(10, 1) == -1, "nothing is known of the follower yet"
    leader.fetched(2, 7, 1, 10, now_ms=5)
    assert leader.watermark(10, 1) == 7
    leader.fetched(3, 3, 1, 10, now_ms=5)
    assert leader.watermark(10, 1) == 7, "3 is not in sync, so nobody waits for it"


def test_a_leader_alone_commits_what_it_has() -> None:
    assert leadership(STATE._replace(replicas=(1,), isr=(1,))).watermark(10, 2) == 10


def test_kip_966_nothing_is_committed_while_too_few_are_in_sync() -> None:
    assert leadership(STATE._replace(isr=(1,))).watermark(10, 2) is None
    assert leadership(STATE._replace(isr=(1,), elr=(2,))).watermark(10, 1) is None, "who is eligible relies on it"


def test_a_follower_that_has_caught_up_is_proposed() -> None:
    leader = leadership()
    leader.fetched(3, 9, 44, 10, now_ms=5)
    assert proposal(leader) is None
    leader.fetched(3, 10, 44, 10, now_ms=6)
    proposed = proposal(leader)
    assert proposed == PendingIsr(isr=(1, 2, 3), joining={3: 44})


def test_it_must_have_reached_what_the_leader_had_when_its_epoch_began() -> None:
    leader = leadership(start=20)
    leader.fetched(3, 15, 44, 20, now_ms=5)
    assert proposal(leader, end=20, watermark=10) is None, "committed in an earlier epoch may be up to 20"


def test_who_is_not_eligible_is_not_proposed() -> None:
    leader = leadership()
    leader.fetched(3, 10, 44, 10, now_ms=6)
    assert leader.proposal(10, 10, 1, 6, LAG_MS, lambda broker, epoch: False) is None


def test_a_follower_that_is_behind_for_too_long_is_to_leave() -> None:
    leader = leadership()
    leader.fetched(2, 10, 1, 10, now_ms=100)
    assert proposal(leader, end=11, now_ms=1100) is None
    assert proposal(leader, end=11, now_ms=1101) == PendingIsr(isr=(1,))
    assert proposal(leader, end=10, now_ms=9999) is None, "who has everything is never late"


def test_a_follower_is_on_time_if_it_has_what_there_was_at_its_last_fetch() -> None:
    leader = leadership()
    leader.fetched(2, 10, 1, 10, now_ms=0)
    leader.fetched(2, 5, 1, 20, now_ms=500)
    leader.fetched(2, 20, 1, 30, now_ms=1000)
    assert leader.followers[2].last_caught_up_ms == 500


def test_asking_again_for_the_end_is_the_same_as_fetching_nothing() -> None:
    told, again = leadership(), leadership()
    for leader in (told, again):
        leader.fetched(2, 8, 1, 10, now_ms=100)
        leader.fetched(2, 10, 1, 10, now_ms=200)
    told.fetched(2, 10, 1, 10, now_ms=900)
    again.followers[2].fetched_again(900)
    assert again.followers == told.followers
    assert proposal(again, end=11, now_ms=900 + LAG_MS) is None, "it had everything then"


def test_until_the_outcome_is_known_everybody_who_may_be_in_the_isr_counts() -> None:
    leader = leadership()
    leader.fetched(2, 4, 1, 10, now_ms=0)
    leader.fetched(3, 8, 1, 10, now_ms=0)
    shrinking = PendingIsr(isr=(1,))
    leader.proposed(shrinking)
    assert leader.watermark(10, 1) == 4, "who leaves counts until that is committed"
    assert proposal(leader) is None, "one at a time"
    leader.refused(shrinking)
    leader.proposed(PendingIsr(isr=(1, 2, 3), joining={3: 1}))
    assert leader.maximal_isr == (1, 2, 3), "who joins counts from now on"


def test_the_facts_settle_a_proposal() -> None:
    leader = leadership()
    leader.fetched(2, 4, 1, 10, now_ms=0)
    leader.proposed(PendingIsr(isr=(1,)))
    leader.follow(STATE._replace(isr=(1,), partition_epoch=8), now_ms=1)
    assert leader.watermark(10, 1) == 10
    leader.follow(STATE, now_ms=2)
    assert leader.isr == (1,), "an older state changes nothing"


def test_an_elr_that_is_needed_no_more_is_proposed_away() -> None:
    leader = leadership(STATE._replace(elr=(3,)))
    leader.fetched(2, 10, 1, 10, now_ms=0)
    assert proposal(leader, min_isr=2) == PendingIsr(isr=(1, 2))


def test_replicas_come_and_go_with_the_facts() -> None:
    leader = leadership()
    leader.follow(STATE._replace(replicas=(1, 2, 4), partition_epoch=8), now_ms=1)
    assert set(leader.followers) == {2, 4}
    assert not leader.fetched(3, 10, 1, 10, now_ms=2)
