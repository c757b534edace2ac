"""Delayed operations of one connection, which share one timer.

A consumer that receives records as they are produced waits and is completed a thousand times per second. A timer per
wait would be created only to be cancelled, so each connection has one timer, which stays set when a wait is
completed. When it fires, it expires the operations that are due and is set for the next one.
"""

import asyncio
from collections.abc import Iterator
from typing import Protocol


class DelayedOperation(Protocol):
    """A request that waits for an event, and is cancelled when its client disconnects."""

    def give_up(self) -> None:
        """Called when the wait has expired: sends the response with what is available."""

    def cancel(self) -> None:
        """Called when the connection is closed: sends no response, and removes the operation from where it waits."""


class DelayedOperations:
    """In order of arrival, so that every run of a simulation has the same order."""

    __slots__ = ("_due", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[DelayedOperation, float] = {}  # expiration of each, in event-loop time
        self._timer: asyncio.TimerHandle | None = None  # fires when the first operation is due, or earlier

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[DelayedOperation]:
        return iter(self._due)

    def add(self, one: DelayedOperation, wait_s: float) -> None:
        due = self._loop.time() + wait_s
        self._due[one] = due
        if self._timer is None or due < self._timer.when():
            self._fire_at(due)

    def discard(self, one: DelayedOperation) -> None:
        self._due.pop(one, None)

    def cancel_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for one in list(self._due):
            one.cancel()

    def _fire_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        fired, self._timer = self._timer, None
        assert fired is not None, "it is what calls"
        now = max(self._loop.time(), fired.when())  # the loop may call slightly early
        for one in [one for one, due in self._due.items() if due <= now]:
            one.give_up()
        if self._due and self._timer is None:
            self._fire_at(min(self._due.values()))
