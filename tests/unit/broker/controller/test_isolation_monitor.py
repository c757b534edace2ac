"""When a broker is left out of its cluster, by what the others say, and when it hangs up."""

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from headrace.broker.controller.isolation_monitor import LOOK_S, IsolationMonitor, is_left_out
from headrace.broker.server import Broker
from headrace.testing.simulation.loop import SimLoop


@pytest.mark.parametrize(
    ("told", "left_out"),
    [
        ([False, False], True),
        ([True, False], True),  # news travels; whoever counts us has yet to hear it
        ([None, False], True),
        ([None, None], True),
        ([True, True], False),  # the store is away for everybody
        ([True, None], False),
        ([], False),
    ],
)
def test_a_broker_is_left_out_when_one_says_so_or_nobody_says_anything(told: list[bool | None], left_out: bool) -> None:
    assert is_left_out(told) is left_out


class Scripted(IsolationMonitor):
    """Finds at each look what is written there, and notes at which look it hangs up."""

    def __init__(self, found: list[bool]) -> None:
        super().__init__(cast(Broker, None))
        self._found: Iterator[bool] = iter(found)
        self.looks = 0
        self.hung_up_at: list[int] = []
        self.is_isolated = False

    async def _is_left_out(self) -> bool:
        self.looks += 1
        return next(self._found, False)

    def _note(self, is_isolated: bool) -> None:
        self.is_isolated = is_isolated

    def _hang_up(self) -> None:
        assert self.is_isolated, "an isolated broker is not ready"
        self.hung_up_at.append(self.looks)


async def lived(left_out: IsolationMonitor, seconds: float) -> None:
    left_out.start()
    await asyncio.sleep(seconds)
    await left_out.stop()


@pytest.mark.parametrize(
    ("found", "hung_up_at"),
    [
        ([False, True, False, False], []),  # it was asleep, and is about to begin a new session
        ([False, True, True, False], [3]),
        ([True, True, True, True], [2, 4]),
    ],
)
def test_it_hangs_up_when_two_looks_in_a_row_say_so(found: list[bool], hung_up_at: list[int]) -> None:
    loop, left_out = SimLoop(), Scripted(found)
    try:
        loop.run_until_complete(lived(left_out, 60 * LOOK_S))
    finally:
        loop.close()
    assert left_out.hung_up_at == hung_up_at
