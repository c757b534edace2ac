"""Reads the metrics of the calling process from the kernel."""

import gc
import os
import platform
import resource
import threading
from collections.abc import Iterator

from headrace import __version__
from headrace.telemetry import process_metrics as metrics
from headrace.telemetry.loop_lag import LoopLag
from headrace.telemetry.metrics import Metric, MetricFamily, Value

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Positions in `/proc/self/stat`, counted after the command's name.
_THREADS, _STARTED, _VIRTUAL, _RESIDENT = 17, 19, 20, 21


class ProcessMetrics:
    """Metrics of this process. `part` is its role. Must be created on the event loop's thread."""

    def __init__(self, part: str, lag: LoopLag) -> None:
        self._part, self._lag = part, lag
        self._schedule = f"/proc/self/task/{threading.get_native_id()}/schedstat"

    def families(self) -> Iterator[MetricFamily]:
        yield self._own(metrics.LOOP_LAG, self._lag.histogram.value())
        yield MetricFamily(metrics.BUILD, [((self._part, __version__, platform.python_version()), 1)])
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield self._own(metrics.CPU, used.ru_utime + used.ru_stime)
        fields = _stat_fields()
        yield self._own(metrics.THREADS, int(fields[_THREADS]))
        yield self._own(metrics.STARTED, _boot_time_s() + int(fields[_STARTED]) / _TICKS)
        yield self._own(metrics.VIRTUAL, int(fields[_VIRTUAL]))
        yield self._own(metrics.RESIDENT, int(fields[_RESIDENT]) * _PAGE_BYTES)
        yield self._own(metrics.OPEN_FDS, len(os.listdir("/proc/self/fd")))
        yield self._own(metrics.MAX_FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        yield self._own(metrics.CPU_WAIT, self._waited_for_a_core_s())
        collections = [(str(number), stats["collections"]) for number, stats in enumerate(gc.get_stats())]
        yield MetricFamily(metrics.GC, [((self._part, generation), count) for generation, count in collections])

    def _own(self, metric: Metric, value: Value) -> MetricFamily:
        return MetricFamily(metric, [((self._part,), value)])

    def _waited_for_a_core_s(self) -> float:
        """Returns 0 where the kernel does not count it."""
        try:
            with open(self._schedule, encoding="ascii") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0


def _stat_fields() -> list[str]:
    with open("/proc/self/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()


def _boot_time_s() -> float:
    with open("/proc/stat", encoding="utf-8") as file:
        for line in file:
            if line.startswith("btime "):
                return float(line.split()[1])
    return 0.0
