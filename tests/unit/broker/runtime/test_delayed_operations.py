"""Requests that wait on a connection: each until it is due, by one timer, however many come and go."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.broker.runtime.delayed_operations import DelayedOperations
from headrace.testing.simulation.loop import SimLoop


class CountingLoop(SimLoop):
    timers = 0

    def call_at(self, *arguments: Any, **options: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        self.timers += 1
        return super().call_at(*arguments, **options)


class Wait:
    """Notes when it was given up."""

    def __init__(self, parking: DelayedOperations, loop: SimLoop) -> None:
        self._parking, self._loop = parking, loop
        self.given_up: list[float] = []
        self.is_cancelled = False

    def give_up(self) -> None:
        self.given_up.append(round(self._loop.time(), 6))
        self._parking.discard(self)

    def cancel(self) -> None:
        self.is_cancelled = True
        self._parking.discard(self)


@pytest.fixture
def loop() -> Iterator[CountingLoop]:
    loop = CountingLoop()
    yield loop
    loop.close()


@pytest.fixture
def parking(loop: CountingLoop) -> DelayedOperations:
    return DelayedOperations(loop)


def pass_time(loop: CountingLoop, seconds: float) -> None:
    loop.run_until_complete(asyncio.sleep(seconds))


def test_each_is_given_up_when_it_is_due(loop: CountingLoop, parking: DelayedOperations) -> None:
    waits = [Wait(parking, loop) for _ in range(4)]
    for wait, seconds in zip(waits, (0.5, 0.2, 0.9, 0.2), strict=True):
        parking.add(wait, seconds)
    pass_time(loop, 2)
    assert [wait.given_up for wait in waits] == [[0.5], [0.2], [0.9], [0.2]]
    assert len(parking) == 0


def test_one_that_was_answered_is_not_given_up(loop: CountingLoop, parking: DelayedOperations) -> None:
    answered, left = Wait(parking, loop), Wait(parking, loop)
    parking.add(answered, 0.5)
    parking.add(left, 0.7)
    parking.discard(answered)
    pass_time(loop, 2)
    assert (answered.given_up, left.given_up) == ([], [0.7])


def test_many_waits_one_after_the_other_cost_a_timer_now_and_then(
    loop: CountingLoop, parking: DelayedOperations
) -> None:
    last = Wait(parking, loop)

    async def come_and_go() -> None:
        for _ in range(1_000):
            wait = Wait(parking, loop)
            parking.add(wait, 0.5)
            await asyncio.sleep(0)
            parking.discard(wait)
        parking.add(last, 0.5)

    before = loop.timers
    loop.run_until_complete(come_and_go())
    assert loop.timers - before == 1
    pass_time(loop, 2)
    assert last.given_up == [0.5]


def test_whoever_parks_again_when_it_is_given_up_waits_anew(loop: CountingLoop, parking: DelayedOperations) -> None:
    class Again(Wait):
        def give_up(self) -> None:
            super().give_up()
            if len(self.given_up) < 3:
                self._parking.add(self, 0.5)

    wait = Again(parking, loop)
    parking.add(wait, 0.5)
    pass_time(loop, 5)
    assert wait.given_up == [0.5, 1.0, 1.5]


def test_when_the_connection_ends_nobody_is_given_up(loop: CountingLoop, parking: DelayedOperations) -> None:
    waits = [Wait(parking, loop), Wait(parking, loop)]
    for wait in waits:
        parking.add(wait, 0.5)
    parking.cancel_all()
    pass_time(loop, 2)
    assert [(wait.is_cancelled, wait.given_up) for wait in waits] == [(True, []), (True, [])]
    assert len(parking) == 0
