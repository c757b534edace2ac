"""Timers of a machine: moved often, due once."""

import asyncio

import pytest

from headrace.broker.coordinator.context import Timers
from headrace.testing.simulation.clock import SimClock


@pytest.fixture
def due() -> list[str]:
    return []


async def test_a_timer_is_due_once(due: list[str]) -> None:
    timers = Timers(SimClock(), due.append)
    timers.set("a", 1)
    await asyncio.sleep(0.02)
    assert due == ["a"]


async def test_a_timer_that_was_moved_away_is_not_due_at_its_old_time(due: list[str]) -> None:
    timers = Timers(SimClock(), due.append)
    timers.set("a", 0)
    timers.set("a", 60_000)
    await asyncio.sleep(0.02)
    assert due == [], "the first time has passed, and meant nothing"
    timers.cancel()


async def test_a_timer_that_was_moved_away_is_due_at_its_new_time() -> None:
    is_due: asyncio.Queue[str] = asyncio.Queue()
    timers = Timers(SimClock(), is_due.put_nowait)
    timers.set("a", 0)
    timers.set("a", 30)
    async with asyncio.timeout(10):
        assert await is_due.get() == "a"


async def test_a_timer_that_was_moved_closer_fires_then(due: list[str]) -> None:
    timers = Timers(SimClock(), due.append)
    timers.set("a", 60_000)
    timers.set("a", 1)
    await asyncio.sleep(0.02)
    assert due == ["a"]


async def test_a_timer_that_was_taken_back_is_never_due(due: list[str]) -> None:
    timers = Timers(SimClock(), due.append)
    timers.set("a", 1)
    timers.set("a", None)
    timers.set("never there", None)
    timers.set("b", 1)
    timers.cancel()
    await asyncio.sleep(0.02)
    assert due == []


async def test_a_timer_may_be_set_again_by_what_it_calls() -> None:
    fired: list[int] = []
    timers = Timers(SimClock(), lambda name: (fired.append(1), timers.set(name, 0 if len(fired) < 3 else None)))  # type: ignore[func-returns-value]
    timers.set("a", 0)
    while len(fired) < 3:  # noqa: ASYNC110 - a timer fires in a later turn of the loop
        await asyncio.sleep(0)
