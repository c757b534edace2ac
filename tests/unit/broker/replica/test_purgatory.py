"""Who waits for a commit is told in order, each once, and never so many at a time that others have to wait."""

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from headrace.broker.replica.purgatory import NOTIFIED_PER_ITERATION_MAX, PartitionWatchers
from headrace.model.errors import HeadraceError, NotLeader

if TYPE_CHECKING:
    from headrace.broker.replica.partition import Partition

PARTITION = cast("Partition", None)  # who is told does not look at it here


class Told:
    def __init__(self, news: list[str], name: int) -> None:
        self._news, self._name = news, name

    def committed(self) -> None:
        self._news.append(f"{self._name} committed")

    def failed(self, partition: "Partition", error: HeadraceError) -> None:
        self._news.append(f"{self._name} failed")


def waiting(count: int) -> tuple[PartitionWatchers, list[str]]:
    waiters, news = PartitionWatchers(), list[str]()
    for offset in range(count):
        waiters.appends.append((offset, Told(news, offset)))
    return waiters, news


async def test_many_are_told_in_order_and_the_loop_turns_between() -> None:
    count = 3 * NOTIFIED_PER_ITERATION_MAX
    waiters, news = waiting(count)
    waiters.on_high_watermark_advanced(count - 2)
    told = [len(news)]
    while told[-1] < count - 1:
        await asyncio.sleep(0)
        told.append(len(news))
    assert told == [NOTIFIED_PER_ITERATION_MAX, 2 * NOTIFIED_PER_ITERATION_MAX, count - 1]
    assert news == [f"{offset} committed" for offset in range(count - 1)]
    waiters.on_high_watermark_advanced(count)
    assert news[-1] == f"{count - 1} committed"


async def test_news_of_a_later_commit_reach_those_who_have_not_been_told_yet() -> None:
    waiters, news = waiting(2 * NOTIFIED_PER_ITERATION_MAX)
    waiters.on_high_watermark_advanced(NOTIFIED_PER_ITERATION_MAX + 5)
    waiters.on_high_watermark_advanced(2 * NOTIFIED_PER_ITERATION_MAX)
    await asyncio.sleep(0)
    assert len(news) == 2 * NOTIFIED_PER_ITERATION_MAX


async def test_what_one_leadership_committed_is_not_told_to_those_who_wait_for_the_next() -> None:
    waiters, news = waiting(2 * NOTIFIED_PER_ITERATION_MAX)
    waiters.on_high_watermark_advanced(2 * NOTIFIED_PER_ITERATION_MAX)
    waiters.dismiss(PARTITION, NotLeader("somebody else leads"))
    waiters.appends.append((7, Told(news, 7)))
    await asyncio.sleep(0)
    assert news[NOTIFIED_PER_ITERATION_MAX:] == [
        f"{offset} failed" for offset in range(NOTIFIED_PER_ITERATION_MAX, 2 * NOTIFIED_PER_ITERATION_MAX)
    ]


class Raising(Told):
    def committed(self) -> None:
        raise RuntimeError("a bug")

    def failed(self, partition: "Partition", error: HeadraceError) -> None:
        raise RuntimeError("a bug")

    def wake(self) -> None:
        raise RuntimeError("a bug")

    give_up = wake


@pytest.mark.parametrize("outcome", ["committed", "failed"])
async def test_waiter_that_raises_does_not_stop_the_others(outcome: str) -> None:
    waiters, news = waiting(3 * NOTIFIED_PER_ITERATION_MAX)
    waiters.appends[1] = (1, Raising(news, 1))
    waiters.appends[NOTIFIED_PER_ITERATION_MAX + 1] = (NOTIFIED_PER_ITERATION_MAX + 1, Raising(news, 1))
    waiters.fetches[Raising(news, 2)] = waiters.replica_fetches[Raising(news, 3)] = None
    if outcome == "committed":
        waiters.on_high_watermark_advanced(3 * NOTIFIED_PER_ITERATION_MAX)
    else:
        waiters.dismiss(PARTITION, NotLeader("another broker leads"))
    waiters.on_log_end_advanced()
    for _ in range(4):
        await asyncio.sleep(0)
    raising = (1, NOTIFIED_PER_ITERATION_MAX + 1)
    assert news == [f"{offset} {outcome}" for offset in range(3 * NOTIFIED_PER_ITERATION_MAX) if offset not in raising]


async def test_forgotten_waiters_are_dropped() -> None:
    waiters, news = waiting(4)
    expired = {waiters.appends[1][1], waiters.appends[2][1]}
    waiters.forget(expired)
    assert [offset for offset, _ in waiters.appends] == [0, 3]
    waiters.on_high_watermark_advanced(5)
    assert news == ["0 committed", "3 committed"]


async def test_sync_waiter_beyond_truncated_end_is_released() -> None:
    waiters = PartitionWatchers()
    waits = [asyncio.create_task(waiters.until_synced(offset)) for offset in (5, 8, 10)]
    await asyncio.sleep(0)
    waiters.cut_syncs(8, 6)
    await asyncio.sleep(0)
    assert [one.done() for one in waits] == [True, False, False], "up to the new end is not synced yet"
    waiters.on_flush_advanced(8)
    await asyncio.gather(*waits)
