"""Replicas that catch up slowly, and readers that are sent to the closest one."""

from headrace.core.image.model import PartitionRegistration
from headrace.core.replica.leader_state import LeaderState
from headrace.core.replica.replica_selector import READ_HERE, select_replica
from headrace.core.replica.replication_quota import ReplicationQuota, is_listed

RACKS = {1: "a", 2: "b", 3: "b"}


def test_without_a_limit_nobody_waits() -> None:
    throttle = ReplicationQuota()
    throttle.copied(10**9, now_ms=0)
    assert throttle.wait_ms(now_ms=0) == 0


def test_what_was_copied_is_paid_off_at_the_rate() -> None:
    throttle = ReplicationQuota()
    throttle.limit(1000)
    throttle.copied(500, now_ms=10_000)
    assert throttle.wait_ms(now_ms=10_000) == 500
    assert throttle.wait_ms(now_ms=10_500) == 0
    throttle.copied(1000, now_ms=10_600)
    throttle.copied(1000, now_ms=10_600)
    assert throttle.wait_ms(now_ms=10_600) == 2000


def test_a_new_limit_forgets_the_debt_of_the_old_one() -> None:
    throttle = ReplicationQuota()
    throttle.limit(1)
    throttle.copied(10**6, now_ms=0)
    throttle.limit(1000)
    assert throttle.wait_ms(now_ms=0) == 0


def test_a_list_names_replicas_or_all_of_them() -> None:
    assert is_listed(frozenset({"0:1", "3:2"}), 3, 2)
    assert not is_listed(frozenset({"0:1", "3:2"}), 3, 1)
    assert is_listed(frozenset({"*"}), 7, 7)
    assert not is_listed(frozenset(), 0, 1)


def led(**ends: int) -> LeaderState:
    """Broker 1 leads; the others have come to these offsets."""
    state = PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 0, 0)
    leadership = LeaderState(1, state, 0, 0)
    for name, end in ends.items():
        leadership.fetched(int(name[1:]), end, 0, 100, 0)
    return leadership


def test_a_reader_is_sent_to_the_replica_in_its_rack_that_is_furthest() -> None:
    assert select_replica("b", "a", RACKS, led(b2=50, b3=70), 40) == 3
    assert select_replica("b", "a", RACKS, led(b2=50, b3=50), 40) == 2


def test_a_reader_stays_where_no_replica_in_sync_in_its_rack_has_what_it_asks_for() -> None:
    assert select_replica("b", "a", RACKS, led(b2=50, b3=70), 80) == READ_HERE
    assert select_replica("a", "a", RACKS, led(b2=50, b3=70), 40) == READ_HERE
    assert select_replica("c", "a", RACKS, led(b2=50, b3=70), 40) == READ_HERE
    assert select_replica("b", "a", {1: "a"}, led(b2=50, b3=70), 40) == READ_HERE, "those brokers are away"
