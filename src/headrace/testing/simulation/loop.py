"""An event loop whose time is simulated: nothing waits, a timer is due as soon as nothing else is to do.

    loop = SimLoop()
    loop.run_until_complete(main())      # an hour of asyncio.sleep takes no time at all

One run is one order of events: there are no sockets and no threads, and what goes to a thread is done on the spot.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.broker.runtime.event_loop import IterationEndLoop

Result = TypeVar("Result")


class Stalled(Exception):
    """Nothing is to do, now or later: whoever waits would wait for ever."""


class _Nothing:
    """As much of a selector as the loop sees: no file is ever ready, and waiting moves the time."""

    def __init__(self, loop: "SimLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        timeout = self._loop.end_turn(timeout)
        if timeout is None:
            raise Stalled("no callback and no timer is left")
        if timeout > 0:
            self._loop.pass_time(timeout)
        return []


class SimLoop(IterationEndLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self.is_in_thread = False  # what runs now would run on another thread of a real loop
        self._selector = _Nothing(self)

    def time(self) -> float:
        return self._now_s

    def pass_time(self, seconds: float) -> None:
        self._now_s += seconds

    def run_in_executor(
        self, executor: object, func: Callable[..., Result], *arguments: object
    ) -> "asyncio.Future[Result]":
        future: asyncio.Future[Result] = self.create_future()
        try:
            with self.in_thread():
                future.set_result(func(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """For work that a thread does in a real process."""
        was_in_thread, self.is_in_thread = self.is_in_thread, True
        try:
            yield
        finally:
            self.is_in_thread = was_in_thread

    # What BaseEventLoop leaves to those who know files and signals

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector, so nobody has to be woken."""


class SimLoopClock:
    """The time of a SimLoop as one machine's clock tells it: set wrong, and perhaps running a little fast or slow."""

    def __init__(self, loop: SimLoop, wall_start_ms: int, *, skew_ms: int = 0, rate: float = 1.0) -> None:
        self._loop = loop
        self._wall_start_ms = wall_start_ms + skew_ms
        self._rate = rate

    def wall_ms(self) -> int:
        return self._wall_start_ms + self.monotonic_ms()

    def advance_wall(self, milliseconds: int) -> None:
        """The date moves on, while timers see no time pass: what waits for days is due."""
        self._wall_start_ms += milliseconds

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000 * self._rate)
