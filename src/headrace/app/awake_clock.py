"""A clock that stands still while its process does.

The store of a cluster on one machine ends the sessions of brokers that it has not heard of in time. If it was kept from
running itself, it has heard of nobody, and their news wait in its sockets: by any other clock it would end all sessions
at once when it wakes up. This one counts only time in which the process lived. A session may last longer by it, never
shorter, and brokers count on theirs for no longer than was agreed.
"""

import asyncio

from headrace.app.clock import SystemClock
from headrace.model.clock import Clock

TICK_MS = 100
# What one look may add: ticks of a busy loop come late. A process that is late by more was not running.
STEP_MS_MAX = 300


class AwakeClock:
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._counted_at_ms = self._clock.monotonic_ms()
        self._lived_ms = self._counted_at_ms

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def monotonic_ms(self) -> int:
        return self._lived_ms + min(self._clock.monotonic_ms() - self._counted_at_ms, STEP_MS_MAX)

    def count(self) -> None:
        """To be called again and again while the process lives."""
        self._lived_ms = self.monotonic_ms()
        self._counted_at_ms = self._clock.monotonic_ms()

    def count_with(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, whenever the loop has turned for a while."""
        self.count()
        loop.call_later(TICK_MS / 1000, self.count_with, loop)
