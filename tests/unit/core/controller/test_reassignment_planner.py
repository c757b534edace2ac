"""Where replicas go when a broker leaves, and when they are to lie evenly."""

from collections import Counter
from random import Random

import pytest

from headrace.core.controller.reassignment_planner import TooFewBrokers, balanced, drained
from headrace.core.controller.replica_placer import place
from headrace.model.ids import TopicPartition

RACKLESS = {1: None, 2: None, 3: None, 4: None}


def topic(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("t", index): brokers for index, brokers in enumerate(replicas)}


def test_a_leaving_broker_holds_nothing_afterwards_and_nothing_else_moves() -> None:
    current = topic((1, 2, 3), (2, 3, 4), (3, 4, 1))
    changes = drained(current, 4, {1: None, 2: None, 3: None})
    assert changes == {TopicPartition("t", 1): (2, 3, 1), TopicPartition("t", 2): (3, 2, 1)}


def test_heirs_share_what_a_leaving_broker_had() -> None:
    current = topic(*[(4,)] * 6)
    changes = drained(current, 4, {1: None, 2: None, 3: None})
    assert Counter(brokers[0] for brokers in changes.values()) == {1: 2, 2: 2, 3: 2}


def test_an_heir_stands_in_a_rack_of_its_own_if_one_does() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    assert drained(topic((1, 4)), 4, racks) == topic((1, 3))


def test_a_broker_cannot_leave_if_its_replicas_have_nowhere_to_go() -> None:
    with pytest.raises(TooFewBrokers, match="t-0 has 3 replicas, and only 2 brokers"):
        drained(topic((1, 2, 3)), 3, {1: None, 2: None})


def test_what_is_even_stays() -> None:
    assert balanced(topic((1, 2), (2, 3), (3, 1)), {1: None, 2: None, 3: None}) == {}


def test_a_new_broker_gets_its_share_and_no_more_moves_than_that() -> None:
    current = topic((1, 2), (2, 3), (3, 1), (1, 3), (2, 1), (3, 2), (1, 2), (2, 3))
    changes = balanced(current, RACKLESS)
    after = {**current, **changes}
    assert Counter(one for brokers in after.values() for one in brokers) == {1: 4, 2: 4, 3: 4, 4: 4}
    copied = sum(len(set(after[place]) - set(current[place])) for place in current)
    assert copied == 4, "a quarter of the sixteen replicas"


def test_leaders_are_spread_without_copying() -> None:
    current = topic((1, 2, 3), (1, 2, 3), (1, 2, 3))
    changes = balanced(current, {1: None, 2: None, 3: None})
    after = {**current, **changes}
    assert Counter(brokers[0] for brokers in after.values()) == {1: 1, 2: 1, 3: 1}
    assert all(set(after[place]) == set(current[place]) for place in current)


def test_no_move_brings_two_replicas_into_one_rack() -> None:
    racks = {1: "a", 2: "b", 3: "a"}
    after = {**topic((1, 2), (1, 2)), **balanced(topic((1, 2), (1, 2)), racks)}
    assert all(len({racks[one] for one in brokers}) == 2 for brokers in after.values())
    assert Counter(one for brokers in after.values() for one in brokers) == {1: 1, 2: 2, 3: 1}


@pytest.mark.parametrize("seed", range(20))
def test_any_cluster_becomes_even_and_keeps_the_number_of_replicas(seed: int) -> None:
    random = Random(seed)
    racks: dict[int, str | None] = dict.fromkeys(range(1, random.randrange(3, 8)))
    factor = random.randrange(1, len(racks))
    old = dict(list(racks.items())[: max(factor, len(racks) - 2)])
    current = topic(*place(old, range(random.randrange(1, 40)), factor, random.randrange(9)))
    after = {**current, **balanced(current, racks)}
    load = Counter(dict.fromkeys(racks, 0))
    load.update(one for brokers in after.values() for one in brokers)
    assert max(load.values()) - min(load.values()) <= 1
    assert all(len(set(brokers)) == factor for brokers in after.values())
