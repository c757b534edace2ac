"""A loop whose turns have an end: what is left for it is done before the loop sleeps, not a turn later.

What several requests of a turn share, as a sync or a look at a partition, is done once, when all of them have been
handled. asyncio has only `call_soon` for that, and it costs a turn of its own: another look at all sockets, with all
that goes with it, before anybody is answered. So the selector does what is left before it waits.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Callback = Callable[[], object]


class IterationEndLoop(asyncio.BaseEventLoop):
    """A loop whose selector calls `end_turn` before it waits."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._left: list[Callback] = []  # for the end of this turn
        self._is_asked = False  # since the end of the turn began: there is something to do before any sleep

    def call_at_turn_end(self, callback: Callback) -> None:
        """Once, when everything that is ready now has been called. From the loop's own thread only."""
        self._left.append(callback)

    def end_turn(self, timeout: float | None) -> float | None:
        """Do what was left; returns how long to wait then. What is left meanwhile is for the end of the next turn."""
        if not self._left:
            return timeout
        left, self._left = self._left, []
        self._is_asked = False
        for callback in left:
            try:
                callback()
            except Exception as error:
                self.call_exception_handler({"message": f"{callback!r} failed", "exception": error, "loop": self})
        return 0 if self._is_asked or self._left else timeout

    # When a turn ends, asyncio has decided how long to wait: these two tell us that it decided too early.

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._is_asked = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._is_asked = True
        return super().call_at(when, callback, *args, context=context)


class BrokerEventLoop(IterationEndLoop, asyncio.SelectorEventLoop):
    """For a broker that serves."""

    def __init__(self) -> None:
        super().__init__(_Selector(self))


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: BrokerEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(self._loop.end_turn(timeout))


def iteration_end_scheduler(loop: asyncio.AbstractEventLoop) -> Callable[[Callback], object]:
    """What to leave things with for the end of a turn. On a loop that has none, it is the next turn."""
    return loop.call_at_turn_end if isinstance(loop, IterationEndLoop) else loop.call_soon


def run_with_turn_ends(serving: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`."""
    with asyncio.Runner(loop_factory=BrokerEventLoop) as runner:
        return runner.run(serving)
