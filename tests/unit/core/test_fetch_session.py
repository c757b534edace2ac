"""A fetch session sends news and only news, survives nothing it should not, and keeps its place bounded."""

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import pytest

from headrace.core.fetch_session import (
    EPOCH_MAX,
    IDLE_BEFORE_EVICTION_MS,
    FetchSession,
    FetchSessions,
    FetchSessionTopicIdError,
)
from headrace.model.errors import FetchSessionNotFound, InvalidFetchSessionEpoch
from headrace.protocol.fetch import FetchPartition, FetchRequest, PartitionRow


class Slice(NamedTuple):
    length: int


def ids() -> Callable[[], int]:
    numbers = count(1)
    return lambda: next(numbers)


def request(
    session_id: int = 0, epoch: int = 0, wanted: tuple[int, ...] = (), forgotten: tuple[int, ...] = ()
) -> FetchRequest:
    partitions = [FetchPartition(index, -1, 10 * index, -1, -1, 1_000) for index in wanted]
    topics = [("t", partitions)] if partitions else []
    gone = [("t", list(forgotten))] if forgotten else []
    return FetchRequest(-1, 500, 1, 1_000_000, False, session_id, epoch, topics, gone, "")  # type: ignore[arg-type]


def begun(
    sessions: FetchSessions, one: FetchRequest, now_ms: int = 0, new_id: Callable[[], int] | None = None
) -> FetchSession:
    session = sessions.begin(one, now_ms, new_id or ids(), uses_topic_ids=False)
    assert session is not None
    return session


def row(index: int, high_watermark: int = 5, size: int = 0, error: int = 0) -> tuple[str, PartitionRow]:
    return "t", PartitionRow(index, error, high_watermark, high_watermark, 0, records=Slice(size) if size else None)


def test_the_first_answer_holds_every_partition() -> None:
    session = begun(FetchSessions(10), request(wanted=(0, 1)))
    assert [one.partition for _, one in session.news(iter([row(0), row(1)]))] == [0, 1]


def test_an_unchanged_partition_is_not_told_again_rule_07() -> None:
    sessions = FetchSessions(10)
    session = begun(sessions, request(wanted=(0, 1)))
    session.news(iter([row(0), row(1)]))
    session = begun(sessions, request(session.session_id, 1))
    news = session.news(iter([row(0), row(1, high_watermark=6)]))
    assert [one.partition for _, one in news] == [1], "only the changed high watermark is news"


def test_data_and_errors_are_always_told_rule_07() -> None:
    session = begun(FetchSessions(10), request(wanted=(0, 1, 2)))
    session.news(iter([row(0), row(1), row(2)]))
    news = session.news(iter([row(0, size=7), row(1, error=3), row(2)]))
    assert [one.partition for _, one in news] == [0, 1]


def test_a_partition_that_failed_is_told_again_when_it_is_well() -> None:
    session = begun(FetchSessions(10), request(wanted=(0,)))
    session.news(iter([row(0)]))
    session.news(iter([row(0, error=3)]))
    assert len(session.news(iter([row(0)]))) == 1


def test_partitions_that_gave_data_go_to_the_end_of_the_queue() -> None:
    session = begun(FetchSessions(10), request(wanted=(0, 1, 2)))
    session.news(iter([row(0, size=7), row(1), row(2)]))
    assert [one.partition for _, one in session.wanted()] == [1, 2, 0]


def test_an_incremental_fetch_changes_adds_and_forgets() -> None:
    sessions = FetchSessions(10)
    session = begun(sessions, request(wanted=(0, 1)))
    session = begun(sessions, request(session.session_id, 1, wanted=(2,), forgotten=(0,)))
    assert [one.partition for _, one in session.wanted()] == [1, 2]


def test_the_epoch_must_be_the_next_one_and_wraps_to_one() -> None:
    sessions = FetchSessions(10)
    session = begun(sessions, request(wanted=(0,)))
    with pytest.raises(InvalidFetchSessionEpoch):
        begun(sessions, request(session.session_id, 2))
    session.next_epoch = EPOCH_MAX
    begun(sessions, request(session.session_id, EPOCH_MAX))
    begun(sessions, request(session.session_id, 1))


def test_an_unknown_session_is_said_to_be_unknown() -> None:
    with pytest.raises(FetchSessionNotFound):
        begun(FetchSessions(10), request(99, 1))


def test_the_final_epoch_ends_the_session() -> None:
    sessions = FetchSessions(10)
    session = begun(sessions, request(wanted=(0,)))
    assert sessions.begin(request(session.session_id, -1, wanted=(0,)), 0, ids(), uses_topic_ids=False) is None
    assert len(sessions) == 0


def test_a_session_does_not_change_from_names_to_ids() -> None:
    sessions = FetchSessions(10)
    session = begun(sessions, request(wanted=(0,)))
    with pytest.raises(FetchSessionTopicIdError):
        sessions.begin(request(session.session_id, 1), 0, ids(), uses_topic_ids=True)


def test_a_full_cache_gives_a_place_only_of_a_silent_session_rule_07() -> None:
    sessions, new_id = FetchSessions(1), ids()
    begun(sessions, request(wanted=(0,)), now_ms=0, new_id=new_id)
    busy = sessions.begin(request(wanted=(0,)), IDLE_BEFORE_EVICTION_MS - 1, new_id, uses_topic_ids=False)
    assert busy is None, "the client fetches without a session then"
    begun(sessions, request(wanted=(0,)), now_ms=IDLE_BEFORE_EVICTION_MS, new_id=new_id)
    assert len(sessions) == 1
