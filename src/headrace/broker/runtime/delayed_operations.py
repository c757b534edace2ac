"""Requests that wait for something on a connection, and one timer for all of them.

A consumer that gets its records as they come parks and is woken a thousand times a second. A timer for each wait would
be made only to be cancelled: so there is one a connection, which nobody cancels when a wait ends well. When it fires,
it looks who has waited long enough, and is set anew for whoever is next.
"""

import asyncio
from collections.abc import Iterator
from typing import Protocol


class DelayedOperation(Protocol):
    """A request that waits for something; pointless once its client is gone."""

    def give_up(self) -> None:
        """It has waited long enough: it is to be answered with what there is."""

    def cancel(self) -> None:
        """Nobody wants an answer any more. Also leaves the place where it is parked."""


class DelayedOperations:
    """In the order of their coming, which is the same in every run of a simulation."""

    __slots__ = ("_due", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[DelayedOperation, float] = {}  # until when each waits, on the loop's clock
        self._timer: asyncio.TimerHandle | None = None  # fires when the first of them is due, or before

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
        now = max(self._loop.time(), fired.when())  # the loop may call a moment early
        for one in [one for one, due in self._due.items() if due <= now]:
            one.give_up()
        if self._due and self._timer is None:
            self._fire_at(min(self._due.values()))
