"""The checker itself, with histories that must fail: a checker that finds nothing proves nothing."""

from tests.integration.history import Seen, Value, problems


def seen(offset: int, number: int, producer: str = "a", partition: int = 0) -> Seen:
    return Seen(partition, offset, Value(producer, number))


LOG = [seen(0, 0), seen(1, 1), seen(2, 0, "b"), seen(3, 2)]


def kinds(found: list[str]) -> set[str]:
    return {problem.split(":")[0] for problem in found}


def test_a_history_that_agrees_is_accepted():
    assert problems(acked=LOG[:3], polled=LOG[1:], log=LOG) == []


def test_an_unacknowledged_record_may_be_there_or_not():
    assert problems(acked=[], polled=[], log=LOG) == []
    assert problems(acked=[], polled=[], log=[]) == []


def test_an_acknowledged_record_that_is_missing_is_lost():
    assert kinds(problems(acked=LOG, polled=[], log=LOG[:3])) == {"lost"}


def test_an_acknowledged_record_at_another_offset_is_lost_where_it_was_promised():
    moved = [seen(0, 0), seen(1, 1), seen(2, 2)]
    assert kinds(problems(acked=[seen(3, 2)], polled=[], log=moved)) == {"lost"}


def test_one_value_at_two_offsets_is_a_duplicate():
    assert kinds(problems(acked=[], polled=[], log=[seen(0, 0), seen(1, 0)])) == {"duplicate"}


def test_one_value_in_two_partitions_is_a_duplicate():
    assert kinds(problems(acked=[], polled=[], log=[seen(0, 0), seen(0, 0, partition=1)])) == {"duplicate"}


def test_a_later_record_before_an_earlier_one_is_reordered():
    assert kinds(problems(acked=[], polled=[], log=[seen(0, 1), seen(1, 0)])) == {"reordered"}


def test_order_holds_within_a_partition_and_a_producer_only():
    apart = [seen(0, 1), seen(1, 0, "b"), seen(0, 0, partition=1)]
    assert problems(acked=[], polled=[], log=apart) == []


def test_a_reader_that_saw_something_else_at_an_offset_makes_it_inconsistent():
    assert kinds(problems(acked=[], polled=[seen(1, 9)], log=LOG)) == {"inconsistent"}


def test_a_reader_that_saw_more_than_the_log_has_makes_it_inconsistent():
    assert kinds(problems(acked=[], polled=[seen(4, 3)], log=LOG)) == {"inconsistent"}


def test_a_hole_in_the_offsets_is_a_gap():
    assert kinds(problems(acked=[], polled=[], log=[seen(0, 0), seen(2, 1)])) == {"gap"}
