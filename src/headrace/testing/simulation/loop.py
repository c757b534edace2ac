"""SimLoop: an event loop with simulated time.

No wait takes real time: a timer is due as soon as no callback is ready.

    loop = SimLoop()
    loop.run_until_complete(main())      # an hour of asyncio.sleep takes no time at all

A run is deterministic: there are no sockets and no threads, and executor calls run inline.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.broker.runtime.event_loop import IterationEndLoop

Result = TypeVar("Result")


class Stalled(Exception):
    """No callback and no timer is left: the awaited future would never complete."""


class _Nothing:
    """Selector of the loop: no file is ever ready, and waiting advances the time."""

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
        self.is_in_thread = False  # the current code would run on another thread of a real loop
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
        """Context of work that runs on a thread in a real process."""
        was_in_thread, self.is_in_thread = self.is_in_thread, True
        try:
            yield
        finally:
            self.is_in_thread = was_in_thread

    # Methods that BaseEventLoop leaves to subclasses with files and signals

    def _process_events(self, event_list: list[Any]) -> None:
        """Does nothing: there are no file events."""

    def _write_to_self(self) -> None:
        """Does nothing: the selector never blocks."""


class SimLoopClock:
    """The clock of one simulated host, based on a SimLoop's time, with an offset and a drift."""

    def __init__(self, loop: SimLoop, wall_start_ms: int, *, skew_ms: int = 0, rate: float = 1.0) -> None:
        self._loop = loop
        self._wall_start_ms = wall_start_ms + skew_ms
        self._rate = rate

    def wall_ms(self) -> int:
        return self._wall_start_ms + self.monotonic_ms()

    def advance_wall(self, milliseconds: int) -> None:
        """Advances the wall clock only: retention that takes days becomes due, timers do not."""
        self._wall_start_ms += milliseconds

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000 * self._rate)
