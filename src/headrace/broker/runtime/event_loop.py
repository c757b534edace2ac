"""Event loop with end-of-iteration callbacks. They run after all ready handles and before `select()`.

Work that several requests of an iteration share, such as a flush or a check of a partition, is done once, when all
of them have been handled. asyncio offers only `call_soon` for that, which costs an iteration of its own, including
another poll of all sockets, before any response is sent. Therefore the selector runs the callbacks before it waits.
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
    """Event loop whose selector calls `end_turn` before it waits."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._left: list[Callback] = []  # for the end of this iteration
        # Set if anything was scheduled since the end of the iteration began: the loop must not wait then.
        self._is_asked = False

    def call_at_turn_end(self, callback: Callback) -> None:
        """Calls the callback once, after everything that is ready now. From the loop's own thread only."""
        self._left.append(callback)

    def end_turn(self, timeout: float | None) -> float | None:
        """Runs the callbacks. Returns how long to wait then. Callbacks added during it run one iteration later."""
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

    # At the end of an iteration, asyncio has already computed its timeout. These two methods detect that it is too
    # long.

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
    """Event loop of a running broker."""

    def __init__(self) -> None:
        super().__init__(_Selector(self))


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: BrokerEventLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(self._loop.end_turn(timeout))


def iteration_end_scheduler(loop: asyncio.AbstractEventLoop) -> Callable[[Callback], object]:
    """Returns a function that schedules an end-of-iteration callback; `call_soon` on loops without them."""
    return loop.call_at_turn_end if isinstance(loop, IterationEndLoop) else loop.call_soon


def run_with_turn_ends(serving: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on a `BrokerEventLoop`."""
    with asyncio.Runner(loop_factory=BrokerEventLoop) as runner:
        return runner.run(serving)
