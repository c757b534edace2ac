"""The state of one coordinator partition, and its timers."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.broker.replica.partition import Partition
from headrace.core.coordinator import CoordinatorShard, CoordinatorTime, Decision, RequestId
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError

log = logging.getLogger(__name__)

# A timer whose decision failed is due again after this delay, doubled with every failure in a row. The first retry
# follows a short stall; the last bounds the log lines and appends of a partition that rejects everything.
RETRY_MS = 100
RETRY_MS_MAX = 5_000


class Timers:
    """Calls `is_due` with the name of each timer at its time.

    Every heartbeat and every commit moves a session's end a little further away. That changes a number here and
    nothing in the loop: a handle that fires too early for the number by then is set again.

    A timer that raises is due again after a bounded backoff, until it succeeds or is set to another time.
    """

    def __init__(self, clock: Clock, is_due: Callable[[str], None]) -> None:
        self._clock = clock
        self._is_due = is_due
        self._due_ms: dict[str, int] = {}
        self._handles: dict[str, tuple[int, asyncio.TimerHandle]] = {}  # with the time that each is set for
        self._retry_ms: dict[str, int] = {}  # by name, the delay before the next retry of a timer that failed
        self._is_cancelled = False

    def set(self, name: str, due_ms: int | None) -> None:
        """A timer of the same name is replaced; None takes it back."""
        handle = self._handles.get(name)
        if due_ms is None:
            self._due_ms.pop(name, None)
            self._retry_ms.pop(name, None)
            if handle is not None:
                self._handles.pop(name)[1].cancel()
            return
        self._due_ms[name] = due_ms
        if handle is None:
            self._arm(name, due_ms)
        elif due_ms < handle[0]:
            handle[1].cancel()
            self._arm(name, due_ms)

    def _arm(self, name: str, due_ms: int) -> None:
        delay_s = max(due_ms - self._clock.monotonic_ms(), 0) / 1000
        handle = asyncio.get_running_loop().call_later(delay_s, self._fired, name, due_ms)
        self._handles[name] = (due_ms, handle)

    def _fired(self, name: str, set_for_ms: int) -> None:
        due_ms = self._due_ms[name]
        if due_ms > set_for_ms:
            self._arm(name, due_ms)
            return
        del self._due_ms[name], self._handles[name]
        try:
            self._is_due(name)
        except Exception as error:
            self._retry(name, error)
        else:
            self._retry_ms.pop(name, None)

    def _retry(self, name: str, error: Exception) -> None:
        delay_ms = self._retry_ms.get(name, RETRY_MS)
        is_expected = isinstance(error, HeadraceError)
        log.error("Timer %r failed; retrying in %d ms: %s", name, delay_ms, error, exc_info=not is_expected)
        if self._is_cancelled or name in self._due_ms:
            return
        self._retry_ms[name] = min(2 * delay_ms, RETRY_MS_MAX)
        self.set(name, self._clock.monotonic_ms() + delay_ms)

    def cancel(self) -> None:
        """Take all of them back, for good: a timer that is running now is not retried."""
        self._is_cancelled = True
        self._retry_ms.clear()
        for _, handle in self._handles.values():
            handle.cancel()
        self._due_ms.clear()
        self._handles.clear()


AnyMachine = TypeVar("AnyMachine", bound=CoordinatorShard[Any])

Waiter = Callable[[object], None]  # told the reply, or the HeadraceError that stands in its place


class QueuedWrite(NamedTuple):
    """A request that is decided about together with others, at the end of this turn of the loop."""

    decide: Callable[[Any, RequestId, CoordinatorTime], Decision[Any]]
    waiter: Waiter


class CoordinatorContext(Generic[AnyMachine]):
    """One machine with the partition that it lives in."""

    def __init__(
        self,
        machine: AnyMachine,
        partition: Partition,
        clock: Clock,
        timer_is_due: Callable[["CoordinatorContext[AnyMachine]", str], None],
    ) -> None:
        self.machine = machine
        self.partition = partition
        self.is_loaded = False
        self.load_error: HeadraceError | None = None  # of the last attempt, while there is no machine
        self.timers = Timers(clock, lambda name: timer_is_due(self, name))
        self.queue: list[QueuedWrite] = []

    def taken_queue(self) -> list[QueuedWrite]:
        queue, self.queue = self.queue, []
        return queue
