"""Replicas that catch up slowly, and readers that are sent to the closest one."""

from headrace.core.cluster.values import PartitionState
from headrace.core.replica.closest import READ_HERE, closest_replica
from headrace.core.replica.leader import Leadership
from headrace.core.replica.throttle import Throttle, is_listed

RACKS = {1: "a", 2: "b", 3: "b"}


def test_without_a_limit_nobody_waits() -> None:
    throttle = Throttle()
    throttle.copied(10**9, now_ms=0)
    assert throttle.wait_ms(now_ms=0) == 0


def test_what_was_copied_is_paid_off_at_the_rate() -> None:
    throttle = Throttle()
    throttle.limit(1000)
    throttle.copied(500, now_ms=10_000)
    assert throttle.wait_ms(now_ms=10_000) == 500
    assert throttle.wait_ms(now_ms=10_500) == 0
    throttle.copied(1000, now_ms=10_600)
    throttle.copied(1000, now_ms=10_600)
    assert throttle.wait_ms(now_ms=10_600) == 2000


def test_a_new_limit_forgets_the_debt_of_the_old_one() -> None:
    throttle = Throttle()
    throttle.limit(1)
    throttle.copied(10**6, now_ms=0)
    throttle.limit(1000)
    assert throttle.wait_ms(now_ms=0) == 0


def test_a_list_names_replicas_or_all_of_them() -> None:
    assert is_listed(frozenset({"0:1", "3:2"}), 3, 2)
    assert not is_listed(frozenset({"0:1", "3:2"}), 3, 1)
    assert is_listed(frozenset({"*"}), 7, 7)
    assert not is_listed(frozenset(), 0, 1)


def led(**ends: int) -> Leadership:
    """Broker 1 leads; the others have come to these offsets."""
    state = PartitionState((1, 2, 3), (1, 2, 3), 1, 0, 0)
    leadership = Leadership(1, state, 0, 0)
    for name, end in ends.items():
        leadership.fetched(int(name[1:]), end, 0, 100, 0)
    return leadership


def test_a_reader_is_sent_to_the_replica_in_its_rack_that_is_furthest() -> None:
    assert closest_replica("b", "a", RACKS, led(b2=50, b3=70), 40) == 3
    assert closest_replica("b", "a", RACKS, led(b2=50, b3=50), 40) == 2


def test_a_reader_stays_where_no_replica_in_sync_in_its_rack_has_what_it_asks_for() -> None:
    assert closest_replica("b", "a", RACKS, led(b2=50, b3=70), 80) == READ_HERE
    assert closest_replica("a", "a", RACKS, led(b2=50, b3=70), 40) == READ_HERE
    assert closest_replica("c", "a", RACKS, led(b2=50, b3=70), 40) == READ_HERE
    assert closest_replica("b", "a", {1: "a"}, led(b2=50, b3=70), 40) == READ_HERE, "those brokers are away"
