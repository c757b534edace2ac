"""How late an event loop comes to what is due: one timer, twenty times a second, for as long as the process lives.

A look costs two microseconds. What holds a loop up for less than the interval is caught by chance, in proportion to its
length: so the share of late looks is the share of the time in which somebody had to wait.
"""

import asyncio

from headrace.telemetry.health import Check, Status
from headrace.telemetry.metrics import Histogram
from headrace.telemetry.process_metrics import LOOP_LAG

INTERVAL_S = 0.05
# The worst is remembered for two of these at most: what was bad a minute ago is history.
LATELY_S = 10.0
# A loop that was this late is too busy, or waits for something that it should not.
LATE_S = 1.0


class LoopLag:
    def __init__(self) -> None:
        self.histogram = Histogram(LOOP_LAG.bounds)
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._worst = self._worst_before = 0.0
        self._period_ends = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due = self._loop.time() + INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        late = max(now - self._due, 0.0)
        self.histogram.add(late)
        if now >= self._period_ends:
            self._worst_before, self._worst, self._period_ends = self._worst, 0.0, now + LATELY_S
        if late > self._worst:
            self._worst = late
        self.start()

    @property
    def recent_max_s(self) -> float:
        """In seconds, of the last ten to twenty."""
        return max(self._worst, self._worst_before)

    def check(self) -> Check:
        worst = self.recent_max_s
        if worst >= LATE_S:
            return Check(
                Status.DEGRADED, f"the event loop was {worst:.2f} s late: the host or the process is overloaded"
            )
        return Check(Status.OK, f"at most {worst * 1000:.0f} ms late")

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
