"""Where partitions go."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.controller.replica_placer import place, rack_alternating

RACKS = st.dictionaries(
    st.integers(0, 50), st.one_of(st.none(), st.sampled_from(["a", "b", "c"])), min_size=1, max_size=9
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[dict[int, str | None], int, int, int]:
    racks = draw(RACKS)
    return racks, draw(st.integers(1, 40)), draw(st.integers(1, len(racks))), draw(st.integers(0, 10**9))


@given(requests())
def test_every_partition_gets_as_many_different_brokers_as_asked(request) -> None:
    racks, partitions, factor, start = request
    placed = place(racks, range(partitions), factor, start)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= set(racks)


@given(requests())
def test_leaders_are_spread_evenly(request) -> None:
    racks, partitions, factor, start = request
    leaders = Counter(dict.fromkeys(racks, 0))
    leaders.update(replicas[0] for replicas in place(racks, range(partitions), factor, start))
    assert max(leaders.values()) - min(leaders.values()) <= 1


@given(requests())
def test_replicas_stand_on_as_many_racks_as_there_are(request) -> None:
    racks, partitions, factor, start = request
    kinds = {rack if rack is not None else broker for broker, rack in racks.items()}
    for replicas in place(racks, range(partitions), factor, start):
        used = {racks[broker] if racks[broker] is not None else broker for broker in replicas}
        assert len(used) == min(factor, len(kinds))


@given(requests(), st.integers(1, 20))
def test_partitions_added_later_continue_the_turn(request, more: int) -> None:
    racks, partitions, factor, start = request
    at_once = place(racks, range(partitions + more), factor, start)
    in_two_steps = place(racks, range(partitions), factor, start)
    in_two_steps += place(racks, range(partitions, partitions + more), factor, start)
    assert in_two_steps == at_once


def test_followers_change_with_every_turn_so_that_one_failure_spreads_its_load() -> None:
    placed = place({1: None, 2: None, 3: None, 4: None}, range(12), 2, start=0)
    followers_of_first = {replicas[1] for replicas in placed if replicas[0] == 1}
    assert followers_of_first == {2, 3, 4}


def test_neighbours_on_the_ring_stand_on_different_racks() -> None:
    assert rack_alternating({1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}) == [1, 3, 5, 2, 4]
