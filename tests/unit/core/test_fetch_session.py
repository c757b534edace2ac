"""A fetch session sends news and only news, survives nothing it should not, and keeps its place bounded."""

import tracemalloc
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple

import pytest

from headrace.core.fetch_session import (
    EPOCH_MAX,
    IDLE_BEFORE_EVICTION_MS,
    PARTITION_BYTES,
    FetchSession,
    FetchSessionCache,
    FetchSessionTopicIdError,
)
from headrace.model.errors import FetchSessionNotFound, InvalidFetchSessionEpoch
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, PartitionRow


class Slice(NamedTuple):
    length: int


def ids() -> Callable[[], int]:
    numbers = count(1)
    return lambda: next(numbers)


def request(
    session_id: int = 0,
    epoch: int = 0,
    wanted: Iterable[int] = (),
    forgotten: tuple[int, ...] = (),
    replica_id: int = -1,
) -> FetchRequest:
    partitions = [FetchPartition(index, -1, 10 * index, -1, -1, 1_000) for index in wanted]
    topics = [("t", partitions)] if partitions else []
    gone = [("t", list(forgotten))] if forgotten else []
    return FetchRequest(replica_id, 500, 1, 1_000_000, False, session_id, epoch, topics, gone, "")  # type: ignore[arg-type]


def begun(
    sessions: FetchSessionCache, one: FetchRequest, now_ms: int = 0, new_id: Callable[[], int] | None = None
) -> FetchSession:
    session = sessions.begin(one, now_ms, new_id or ids(), uses_topic_ids=False)
    assert session is not None
    return session


def row(index: int, high_watermark: int = 5, size: int = 0, error: int = 0) -> tuple[str, PartitionRow]:
    return "t", PartitionRow(index, error, high_watermark, high_watermark, 0, records=Slice(size) if size else None)


def test_the_first_answer_holds_every_partition() -> None:
    session = begun(FetchSessionCache(10), request(wanted=(0, 1)))
    assert [one.partition for _, one in session.news(iter([row(0), row(1)]))] == [0, 1]


def test_an_unchanged_partition_is_not_told_again_rule_07() -> None:
    sessions = FetchSessionCache(10)
    session = begun(sessions, request(wanted=(0, 1)))
    session.news(iter([row(0), row(1)]))
    session = begun(sessions, request(session.session_id, 1))
    news = session.news(iter([row(0), row(1, high_watermark=6)]))
    assert [one.partition for _, one in news] == [1], "only the changed high watermark is news"


def test_data_and_errors_are_always_told_rule_07() -> None:
    session = begun(FetchSessionCache(10), request(wanted=(0, 1, 2)))
    session.news(iter([row(0), row(1), row(2)]))
    news = session.news(iter([row(0, size=7), row(1, error=3), row(2)]))
    assert [one.partition for _, one in news] == [0, 1]


def test_a_partition_that_failed_is_told_again_when_it_is_well() -> None:
    session = begun(FetchSessionCache(10), request(wanted=(0,)))
    session.news(iter([row(0)]))
    session.news(iter([row(0, error=3)]))
    assert len(session.news(iter([row(0)]))) == 1


def test_partitions_that_gave_data_go_to_the_end_of_the_queue() -> None:
    session = begun(FetchSessionCache(10), request(wanted=(0, 1, 2)))
    session.news(iter([row(0, size=7), row(1), row(2)]))
    assert [one.partition for _, one in session.wanted()] == [1, 2, 0]


def test_an_incremental_fetch_changes_adds_and_forgets() -> None:
    sessions = FetchSessionCache(10)
    session = begun(sessions, request(wanted=(0, 1)))
    session = begun(sessions, request(session.session_id, 1, wanted=(2,), forgotten=(0,)))
    assert [one.partition for _, one in session.wanted()] == [1, 2]


def test_the_epoch_must_be_the_next_one_and_wraps_to_one() -> None:
    sessions = FetchSessionCache(10)
    session = begun(sessions, request(wanted=(0,)))
    with pytest.raises(InvalidFetchSessionEpoch):
        begun(sessions, request(session.session_id, 2))
    session.next_epoch = EPOCH_MAX
    begun(sessions, request(session.session_id, EPOCH_MAX))
    begun(sessions, request(session.session_id, 1))


def test_an_unknown_session_is_said_to_be_unknown() -> None:
    with pytest.raises(FetchSessionNotFound):
        begun(FetchSessionCache(10), request(99, 1))


def test_the_final_epoch_ends_the_session() -> None:
    sessions = FetchSessionCache(10)
    session = begun(sessions, request(wanted=(0,)))
    assert sessions.begin(request(session.session_id, -1, wanted=(0,)), 0, ids(), uses_topic_ids=False) is None
    assert len(sessions) == 0


def test_a_session_does_not_change_from_names_to_ids() -> None:
    sessions = FetchSessionCache(10)
    session = begun(sessions, request(wanted=(0,)))
    with pytest.raises(FetchSessionTopicIdError):
        sessions.begin(request(session.session_id, 1), 0, ids(), uses_topic_ids=True)


def test_a_full_cache_gives_a_place_only_of_a_silent_session_rule_07() -> None:
    sessions, new_id = FetchSessionCache(1), ids()
    begun(sessions, request(wanted=(0,)), now_ms=0, new_id=new_id)
    busy = sessions.begin(request(wanted=(0,)), IDLE_BEFORE_EVICTION_MS - 1, new_id, uses_topic_ids=False)
    assert busy is None, "the client fetches without a session then"
    begun(sessions, request(wanted=(0,)), now_ms=IDLE_BEFORE_EVICTION_MS, new_id=new_id)
    assert len(sessions) == 1


def full_of_consumers(bytes_max: int = 100 * PARTITION_BYTES) -> tuple[FetchSessionCache, Callable[[], int]]:
    sessions, new_id = FetchSessionCache(1000, bytes_max), ids()
    for _ in range(10):
        begun(sessions, request(wanted=range(10)), new_id=new_id)
    return sessions, new_id


def test_session_beyond_the_byte_budget_is_not_created() -> None:
    sessions, new_id = full_of_consumers()
    assert sessions.begin(request(wanted=(0,)), 1, new_id, uses_topic_ids=False) is None
    begun(sessions, request(1, 1, forgotten=(3, 4)), 1)
    begun(sessions, request(wanted=(0, 1)), 1, new_id)
    assert sessions.begin(request(wanted=(0,)), 1, new_id, uses_topic_ids=False) is None


def test_session_that_grows_beyond_the_budget_ends() -> None:
    sessions, new_id = full_of_consumers()
    with pytest.raises(FetchSessionNotFound):
        begun(sessions, request(1, 1, wanted=(10,)), 1)
    assert len(sessions) == 9
    begun(sessions, request(wanted=range(10)), 1, new_id)


def test_idle_sessions_make_place_for_partitions() -> None:
    sessions, new_id = full_of_consumers()
    begun(sessions, request(wanted=range(35)), IDLE_BEFORE_EVICTION_MS, new_id)
    assert len(sessions) == 10 - 4 + 1


def test_follower_session_evicts_consumer_sessions() -> None:
    sessions, new_id = full_of_consumers()
    follower = begun(sessions, request(wanted=range(20), replica_id=2), 1, new_id)
    assert len(sessions) == 10 - 2 + 1
    begun(sessions, request(follower.session_id, 1, wanted=range(20, 95), replica_id=2), 2)
    assert len(sessions) == 1, "a consumer's session is evicted, whatever it needs"
    assert sessions.begin(request(wanted=range(10), replica_id=3), 3, new_id, uses_topic_ids=False) is None
    begun(sessions, request(follower.session_id, 2), 4)


def test_follower_session_takes_the_slot_of_a_consumer() -> None:
    sessions, new_id = FetchSessionCache(2), ids()
    first = begun(sessions, request(wanted=(0,), replica_id=2), 0, new_id)
    begun(sessions, request(wanted=(0,)), 1, new_id)
    begun(sessions, request(wanted=(0,), replica_id=3), 2, new_id)
    begun(sessions, request(first.session_id, 1, replica_id=2), 3)
    assert sessions.begin(request(wanted=(0,)), 4, new_id, uses_topic_ids=False) is None
    assert sessions.begin(request(wanted=(0,), replica_id=4), 4, new_id, uses_topic_ids=False) is None


def test_ended_sessions_give_their_bytes_back() -> None:
    sessions, new_id = full_of_consumers()
    for session_id in range(1, 11):
        sessions.begin(request(session_id, -1), 1, new_id, uses_topic_ids=False)
    assert len(sessions) == 0
    begun(sessions, request(wanted=range(100)), 1, new_id)


def test_partitions_take_no_more_memory_than_assumed() -> None:
    """Each in a topic of its own whose name is as long as names may be: the most that a request can make us keep."""
    count = 2_000
    sessions = FetchSessionCache(10, count * PARTITION_BYTES)
    tracemalloc.start()
    try:
        topics = [(f"{number:0249}", [FetchPartition(0, 2**30, 2**40, 2**30, 2**40, 2**30)]) for number in range(count)]
        wanted = request()._replace(topics=topics)  # type: ignore[arg-type]
        session = begun(sessions, wanted)
        for cached in session.partitions.values():
            cached.high_watermark, cached.log_start_offset = int("4" * 13), int("5" * 13)
        del topics, wanted
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= count * PARTITION_BYTES
