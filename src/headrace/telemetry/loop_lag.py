"""Event loop lag: the delay of a timer that fires twenty times a second, for the lifetime of the process.

A sample costs two microseconds. Delays shorter than the interval are sampled in proportion to their length: the share
of late samples is the share of the time in which callbacks had to wait.
"""

import asyncio

from headrace.telemetry.health import Check, Status
from headrace.telemetry.metrics import Histogram
from headrace.telemetry.process_metrics import LOOP_LAG

INTERVAL_S = 0.05
# The maximum covers two of these periods at most.
LATELY_S = 10.0
# A loop with this lag is overloaded, or blocked by a call that should not block.
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
        """Returns the maximal lag of the last ten to twenty seconds."""
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
