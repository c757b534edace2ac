"""Histogram of event loop delays, measured in the process if the environment enables it.

    HEADRACE_LOOP_LAG_FILE=lag.json headrace start …

A timer fires every 5 ms; its delays go into a histogram, which is written as JSON when the node stops. Some delays
are not caused by the process: the kernel gave the core to another one, or the virtual machine was stopped. So a
second histogram has only what the process itself can have delayed by computing: at most the CPU time of all its
threads (one of them may have held the interpreter's lock), less the time for which the loop's thread waited for a
core. A wait for the disk counts only in the first.
"""

import asyncio
import json
import os
import threading
import time
from bisect import bisect_left

FILE_VARIABLE = "HEADRACE_LOOP_LAG_FILE"
INTERVAL_S = 0.005
BOUNDS_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0)


class Histogram:
    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._max_ms = 0.0

    def add(self, lag_ms: float) -> None:
        self._counts[bisect_left(BOUNDS_MS, lag_ms)] += 1
        self._max_ms = max(self._max_ms, lag_ms)

    def to_json(self) -> dict[str, object]:
        return {
            "interval_ms": INTERVAL_S * 1000,
            "samples": sum(self._counts),
            "max_ms": self._max_ms,
            "bounds_ms": BOUNDS_MS,
            "counts": self._counts,
        }


class LoopLag:
    def __init__(self, path: str) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._schedule = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._waited_ms, self._used_ms = self._waited_for_a_core_ms(), _cpu_ms()
        self._lag, self._own_lag = Histogram(), Histogram()
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    @classmethod
    def if_asked_for(cls) -> "LoopLag | None":
        path = os.environ.get(FILE_VARIABLE)
        return cls(path) if path else None

    def _wait(self) -> None:
        self._due = self._loop.time() + INTERVAL_S
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        lag_ms = (self._loop.time() - self._due) * 1000
        waited_ms, used_ms = self._waited_for_a_core_ms(), _cpu_ms()
        self._lag.add(lag_ms)
        self._own_lag.add(max(min(lag_ms - (waited_ms - self._waited_ms), used_ms - self._used_ms), 0.0))
        self._waited_ms, self._used_ms = waited_ms, used_ms
        self._wait()

    def _waited_for_a_core_ms(self) -> float:
        """Returns the time since the start of the thread; 0 where the kernel does not count it."""
        try:
            with open(self._schedule, encoding="ascii") as file:
                return int(file.read().split()[1]) / 1e6
        except (OSError, IndexError):
            return 0.0

    def write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with open(self._path, "w", encoding="utf-8") as file:
            json.dump({**self._lag.to_json(), "own": self._own_lag.to_json()}, file)


def _cpu_ms() -> float:
    """Returns the CPU time of all threads since the start of the process."""
    return time.process_time() * 1000
