from headrace.testing.history import Delivery, delivery

SENT = {"a": [1, 2, 3], "b": [10, 20]}


def test_the_same_by_key_and_in_order_is_exactly_once():
    found = delivery(SENT, {"b": [10, 20], "a": [1, 2, 3]})
    assert found == Delivery()
    assert found.is_exactly_once
    assert found.is_at_least_once
    assert found.is_at_most_once


def test_a_value_that_does_not_arrive_is_lost():
    found = delivery(SENT, {"a": [1, 3]})
    assert found == Delivery(lost=(2, 10, 20))
    assert found.is_at_most_once
    assert not found.is_at_least_once


def test_a_stretch_that_is_gone_over_again_repeats_and_reorders_nothing():
    found = delivery(SENT, {"a": [1, 2, 1, 2, 3], "b": [10, 20]})
    assert found == Delivery(repeated=(1, 2))
    assert found.is_at_least_once
    assert not found.is_at_most_once


def test_a_value_that_first_arrives_after_a_later_one_is_reordered():
    found = delivery(SENT, {"a": [2, 1, 3], "b": [10, 20]})
    assert found == Delivery(reordered=(1,))
    assert found.is_exactly_once, "order is a promise of its own"


def test_a_value_that_nobody_sent_or_under_another_key_is_strange():
    assert delivery(SENT, {"a": [1, 2, 3, 99], "b": [10, 20]}) == Delivery(strange=(99,))
    assert delivery(SENT, {"a": [1, 2, 3, 10], "b": [20]}) == Delivery(strange=(10,))
    assert not delivery(SENT, {"a": [99]}).is_at_most_once
    assert not delivery(SENT, {"a": [1, 2, 3, 99], "b": [10, 20]}).is_at_least_once
