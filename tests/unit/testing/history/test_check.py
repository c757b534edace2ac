"""The checker itself, with histories that must fail: a checker that finds nothing proves nothing."""

import pytest

from headrace.testing.history import (
    Anomaly,
    Assign,
    Begin,
    Crash,
    Ended,
    Ending,
    Event,
    NotSent,
    Poll,
    Seen,
    Send,
    Sent,
    Subscribe,
    TopicPartition,
    check,
)

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def sent(value: int, offset: int | None = None, *, client: str = "a", place: TopicPartition = P0) -> list[Event]:
    return [Send(client, place, value), Sent(client, value, offset)]


def polled(*records: tuple[int, int], client: str = "r", place: TopicPartition = P0) -> Poll:
    """Pairs of offset and value."""
    return Poll(client, tuple(Seen(place, offset, value) for offset, value in records))


def anomalies(events: list[Event], *, is_complete: bool = True) -> set[Anomaly]:
    return {problem.anomaly for problem in check(events, is_complete=is_complete)}


THREE = [*sent(10, 0), *sent(11, 1), *sent(12, 2)]
READ = polled((0, 10), (1, 11), (2, 12))


def test_what_was_sent_and_read_in_order_is_fine():
    assert check([*THREE, Assign("r", (P0,)), READ]) == []


def test_nothing_at_all_is_fine():
    assert check([]) == []


# Lost and unseen


def test_an_acknowledged_value_that_readers_have_passed_is_lost():
    assert anomalies([*THREE, polled((0, 10), (2, 12))]) == {Anomaly.LOST}


def test_an_acknowledged_value_that_nobody_came_to_is_unseen():
    assert anomalies([*THREE, polled((0, 10), (1, 11))]) == {Anomaly.UNSEEN}
    assert anomalies([*THREE]) == {Anomaly.UNSEEN}


def test_an_acknowledged_value_without_an_offset_is_unseen():
    assert anomalies([*sent(10), *sent(11, 1), polled((1, 11))]) == {Anomaly.UNSEEN}


def test_in_a_history_that_goes_on_only_what_was_passed_is_lost():
    assert anomalies([*THREE, polled((0, 10))], is_complete=False) == set()
    assert anomalies([*THREE, polled((2, 12))], is_complete=False) == {Anomaly.LOST}


def test_a_value_that_was_never_acknowledged_may_be_there_or_not():
    assert check([Send("a", P0, 10), Crash("a")]) == []
    assert check([Send("a", P0, 10), Crash("a"), polled((0, 10))]) == []


def test_lost_is_judged_partition_by_partition():
    assert anomalies([*sent(10, 0), *sent(11, 5, place=P1), polled((5, 11), place=P1)]) == {Anomaly.UNSEEN}


# Duplicates and contradictions


def test_one_value_at_two_offsets_is_a_duplicate():
    assert anomalies([*sent(10, 0), polled((0, 10), (1, 10))]) == {Anomaly.DUPLICATE}


def test_a_value_that_was_promised_elsewhere_than_it_is_read_is_a_duplicate():
    assert anomalies([*sent(10, 0), polled((7, 10))]) == {Anomaly.DUPLICATE}


def test_two_values_at_one_offset_are_inconsistent():
    reads = [polled((0, 10)), polled((0, 11), client="s"), polled((1, 11))]
    assert Anomaly.INCONSISTENT_OFFSET in anomalies([*sent(10, 0), *sent(11, 1), *reads])


def test_two_values_that_were_promised_the_same_offset_are_inconsistent():
    assert Anomaly.INCONSISTENT_OFFSET in anomalies([*sent(10, 0), *sent(11, 0, client="b")])


def test_a_value_that_nobody_sent_is_a_stranger():
    assert anomalies([polled((0, 99))]) == {Anomaly.STRANGER}


def test_a_value_in_another_partition_than_it_was_sent_to_is_a_stranger():
    assert Anomaly.STRANGER in anomalies([Send("a", P0, 10), polled((0, 10), place=P1)])


# Refused and aborted


def test_a_refused_value_that_is_read_is_an_aborted_read():
    assert anomalies([Send("a", P0, 10), NotSent("a", 10), polled((0, 10))]) == {Anomaly.ABORTED_READ}


def transaction(*ends: Event, values: tuple[int, ...] = (10, 11)) -> list[Event]:
    return [Begin("a"), *(event for at, value in enumerate(values) for event in sent(value, at)), *ends]


COMMITTED = (Ending("a", True), Ended("a", True))


def test_a_committed_transaction_is_seen_as_a_whole():
    assert check([*transaction(*COMMITTED), polled((0, 10), (1, 11))]) == []


@pytest.mark.parametrize(
    "ends",
    [
        (Ending("a", False), Ended("a", False)),
        (Ending("a", True), Ending("a", False), Ended("a", False)),
        (Ending("a", False),),
        (Crash("a"),),
        (),
    ],
    ids=["aborted", "commit failed, then aborted", "abort not answered", "crashed before the commit", "open"],
)
def test_what_was_never_committed_is_not_seen(ends: tuple[Event, ...]):
    assert check(transaction(*ends)) == []
    assert anomalies([*transaction(*ends), polled((0, 10), (1, 11))]) == {Anomaly.ABORTED_READ}


def test_a_commit_without_an_answer_is_seen_as_a_whole_or_not_at_all():
    unknown = transaction(Ending("a", True), Crash("a"))
    assert check(unknown) == []
    assert check([*unknown, polled((0, 10), (1, 11))]) == []
    assert anomalies([*unknown, polled((0, 10))]) == {Anomaly.TORN}
    assert anomalies([*unknown, polled((1, 11))]) == {Anomaly.TORN}


def test_half_of_a_committed_transaction_is_lost_or_unseen():
    assert anomalies([*transaction(*COMMITTED), polled((1, 11))]) == {Anomaly.LOST}
    assert anomalies([*transaction(*COMMITTED), polled((0, 10))]) == {Anomaly.UNSEEN}


def test_a_client_goes_on_after_its_transaction():
    again = [Begin("a"), *sent(12, 3), Ending("a", False), Ended("a", False), *sent(13, 5)]
    history = [*transaction(*COMMITTED), *again]
    assert check([*history, Assign("r", (P0,)), polled((0, 10), (1, 11), (5, 13))]) == []
    assert anomalies([*history, polled((0, 10), (1, 11), (3, 12), (5, 13))]) == {Anomaly.ABORTED_READ}


# Order


def test_a_later_value_before_an_earlier_one_of_the_same_client_is_a_non_monotonic_send():
    assert anomalies([*sent(10, 1), *sent(11, 0), polled((0, 11), (1, 10))]) == {Anomaly.NONMONOTONIC_SEND}


def test_the_order_of_sends_is_judged_by_what_readers_saw_too():
    unknown = [Send("a", P0, 10), Send("a", P0, 11), polled((0, 11), (1, 10))]
    assert anomalies(unknown) == {Anomaly.NONMONOTONIC_SEND}


def test_order_holds_for_one_client_in_one_partition_only():
    apart = [*sent(10, 5), *sent(11, 0, client="b"), *sent(12, 0, place=P1)]
    assert check([*apart, polled((0, 11), (5, 10)), polled((0, 12), place=P1)]) == []


def test_an_assigned_reader_that_leaves_something_out_has_skipped():
    other = polled((0, 10), (1, 11), (2, 12), client="s")
    assert anomalies([*THREE, other, Assign("r", (P0,)), polled((0, 10), (2, 12))]) == {Anomaly.SKIPPED_POLL}
    assert anomalies([*THREE, other, Assign("r", (P0,)), polled((0, 10)), polled((2, 12))]) == {Anomaly.SKIPPED_POLL}


def test_a_hole_in_the_offsets_where_nothing_stands_is_no_skip():
    assert check([*sent(10, 0), *sent(11, 4), Assign("r", (P0,)), polled((0, 10), (4, 11))]) == []


def test_an_assigned_reader_passes_over_aborted_records():
    aborted = [Begin("a"), *sent(10, 0), Ending("a", False), Ended("a", False)]
    history = [*sent(9, 0, client="b", place=P1), *aborted, *sent(11, 2, client="b")]
    reads = [Assign("r", (P0, P1)), polled((2, 11)), polled((0, 9), place=P1)]
    assert check([*history, *reads]) == []


def test_an_assigned_reader_that_goes_back_is_non_monotonic():
    assert anomalies([*THREE, READ, Assign("r", (P0,)), polled((1, 11)), polled((0, 10))]) == {
        Anomaly.NONMONOTONIC_POLL
    }
    assert anomalies([*THREE, Assign("r", (P0,)), READ, polled((2, 12))]) == {Anomaly.NONMONOTONIC_POLL}


def test_a_new_assignment_begins_anywhere():
    assert check([*THREE, Assign("r", (P0,)), READ, Assign("r", (P0,)), polled((1, 11))]) == []


def test_a_subscribed_reader_may_skip_and_rewind():
    reads = [Subscribe("r", ("t",)), polled((0, 10), (2, 12)), polled((0, 10), (1, 11))]
    assert check([*THREE, *reads]) == []


# Histories that make no sense


@pytest.mark.parametrize(
    "events",
    [
        [Send("a", P0, 10), Send("b", P0, 10)],
        [Sent("a", 10, 0)],
        [NotSent("a", 10)],
        [Ended("a", True)],
        [Ending("a", True)],
    ],
    ids=["a value sent twice", "acknowledged before sent", "refused before sent", "ended before begun", "ending"],
)
def test_a_history_that_cannot_be_is_refused(events: list[Event]):
    with pytest.raises(ValueError):
        check(events)


def test_a_problem_says_what_happened_and_where():
    (problem,) = check([*THREE, polled((0, 10), (2, 12))])
    assert str(problem) == (
        "lost: 11 of a was acknowledged at t-0@1 and is not there, though readers have come to offset 2"
    )
