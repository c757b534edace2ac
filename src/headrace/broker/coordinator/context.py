"""Context of one coordinator partition: state machine, load state, queued writes and timers."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from headrace.broker.replica.partition import Partition
from headrace.core.coordinator import CoordinatorShard, CoordinatorTime, Decision, RequestId
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError

log = logging.getLogger(__name__)

# Delay before a timer whose callback failed is due again; doubled with every consecutive failure. The first retry
# follows a short stall. The maximum bounds the log lines and appends of a partition that rejects everything.
RETRY_MS = 100
RETRY_MS_MAX = 5_000


class Timers:
    """Calls `is_due` with the name of each timer at its time.

    Every heartbeat and every commit postpones the end of a session. That changes only the due time stored here: an
    event-loop handle that fires before it is set again.

    A timer whose callback raises is due again after a bounded backoff, until it succeeds or is set to another time.
    """

    def __init__(self, clock: Clock, is_due: Callable[[str], None]) -> None:
        self._clock = clock
        self._is_due = is_due
        self._due_ms: dict[str, int] = {}
        self._handles: dict[str, tuple[int, asyncio.TimerHandle]] = {}  # with the time that each is set for
        self._retry_ms: dict[str, int] = {}  # by name: delay before the next retry of a timer that failed
        self._is_cancelled = False

    def set(self, name: str, due_ms: int | None) -> None:
        """Sets a timer, and replaces one of the same name; None cancels it."""
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
        """Cancels all timers permanently. A timer whose callback is running is not retried."""
        self._is_cancelled = True
        self._retry_ms.clear()
        for _, handle in self._handles.values():
            handle.cancel()
        self._due_ms.clear()
        self._handles.clear()


AnyMachine = TypeVar("AnyMachine", bound=CoordinatorShard[Any])

Waiter = Callable[[object], None]  # called with the reply, or with the HeadraceError that replaces it


class QueuedWrite(NamedTuple):
    """A request that is decided, and appended, together with the other requests of its event-loop iteration."""

    decide: Callable[[Any, RequestId, CoordinatorTime], Decision[Any]]
    waiter: Waiter


class CoordinatorContext(Generic[AnyMachine]):
    """State machine of one coordinator partition, with its timers and queued writes."""

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
        self.load_error: HeadraceError | None = None  # of the last load attempt, until one succeeds
        self.timers = Timers(clock, lambda name: timer_is_due(self, name))
        self.queue: list[QueuedWrite] = []

    def taken_queue(self) -> list[QueuedWrite]:
        queue, self.queue = self.queue, []
        return queue
