"""Set-up of a process: garbage collector, scheduler slice and niceness, log format, clock.

Interpreter: long garbage collections and threads that hold the interpreter lock delay the event loop, so both are
bounded.

Scheduler: on a busy CPU, Linux lets a running thread continue for about 3 ms before the next one runs. A thread may
request shorter slices (`sched_setattr`, since Linux 6.12): its share stays the same, but it runs sooner after it
becomes ready, which matters for a request of 0.1 ms. No privilege is needed. docs/adr/0023 has measurements. The
sidecar processes use ordinary slices and a lower priority (`nice`), so that other processes wait less for them. That
needs no new kernel. docs/adr/0024 has measurements.

Log lines go to standard error, as text or as one JSON document per line:

    {"time":"2026-01-31T12:00:00.123Z","level":"warning","logger":"headrace.broker.network.socket_server","message":"…","part":"broker"}

A record that is logged with `extra={"fields": {…}}` has these fields in its JSON document.
"""

import gc
import json
import logging
import os
import struct
import sys
import time
import traceback

# How long another thread of the process may keep the interpreter while the loop waits for it. Python's default of 5 ms
# is as long as a request may be delayed in total.
SWITCH_INTERVAL_S = 0.0005


def tune_interpreter() -> None:
    """Tunes the interpreter for a process that serves requests.

    Objects of the start-up are frozen, and garbage collections are rare: full collections cost latency, and requests
    create few reference cycles.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


log = logging.getLogger(__name__)

# Time for a few small requests: with less, traces show the broker interrupted within a request.
BROKER_SLICE_NS = 500_000
ORDINARY_SLICE_NS = 0  # the kernel's default

# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period; the fields of its first version.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
# system call numbers of sched_setattr; glibc has no wrapper before 2.41
_CALL_NUMBERS = {"x86_64": 314, "aarch64": 274}
_THIS_THREAD = 0


def step_back(nice: int) -> None:
    """Lowers the priority of this thread and of all that it starts.

    It gets ordinary slices, and a niceness higher by `nice`.
    """
    set_scheduler_slice(ORDINARY_SLICE_NS)  # the slices of the parent broker are short, and threads inherit them
    os.nice(nice)


def set_scheduler_slice(slice_ns: int) -> bool:
    """Sets the scheduler slice of this thread, and of threads and processes that it starts.

    Returns False if unsupported. A process that was started with a scheduling policy of its own (`chrt`) keeps it.
    The niceness does not change.
    """
    number = _CALL_NUMBERS.get(os.uname().machine)
    if number is None or os.sched_getscheduler(_THIS_THREAD) != os.SCHED_OTHER:
        return False
    import ctypes  # needed only here, and takes 2 ms

    nice = os.getpriority(os.PRIO_PROCESS, _THIS_THREAD)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(number, _THIS_THREAD, attributes, 0) == 0:
        return True
    log.debug("scheduler time slice of %d ns: %s", slice_ns, os.strerror(ctypes.get_errno()))
    return False


TEXT_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    def __init__(self, part: str) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "part": self._part,
        }
        fields = getattr(record, "fields", None)
        if fields:
            line |= fields
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["trace"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


def write_log_lines(log_format: str, part: str) -> None:
    """Configures logging to standard error, from the level INFO on. Does nothing if logging is configured already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(part) if log_format == "json" else logging.Formatter(TEXT_LINE))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
