"""Set-up of a process: garbage collector, scheduler slice and niceness, log format, clock.

How a process that serves wants its Python: no long collections, no thread that holds up the loop.

How the processes of a node share processors: the broker asks for short turns, those beside it step back.

On a busy processor Linux lets whoever runs go on for about 3 ms before the next one has its turn. A thread may ask for
shorter turns (`sched_setattr`, since Linux 6.12): it gets no larger share, but gets it as soon as it has something to
do, which for a request of 0.1 ms makes all the difference. No privilege is needed. docs/adr/0023 has what it gives.

Those beside the broker ask for ordinary turns and for less of a busy processor than others (`nice`), so that whoever
else wakes up waits less for them. That needs no new kernel. docs/adr/0024 has what it gives.

How log lines look: for people, or one JSON document a line for machines. Standard error, in every process.

    {"time":"2026-01-31T12:00:00.123Z","level":"warning","logger":"headrace.broker.network.socket_server","message":"…","part":"broker"}

A line that somebody logs with `extra={"fields": {…}}` carries those fields as they are.
"""

import gc
import json
import logging
import os
import struct
import sys
import time
import traceback

# How long another thread of ours may keep the interpreter while the loop wants it: Python's own 5 ms is all that a
# request may be held up altogether.
SWITCH_INTERVAL_S = 0.0005


def tune_interpreter() -> None:
    """What start-up made stays; requests make no cycles worth looking for often. Full collections cost latency."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


log = logging.getLogger(__name__)

# A few small requests: with less, traces show the broker interrupted in the middle of one.
BROKER_SLICE_NS = 500_000
ORDINARY_SLICE_NS = 0  # the kernel's own

# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period. The first version has no more.
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
_CALL_NUMBERS = {"x86_64": 314, "aarch64": 274}  # of sched_setattr; glibc has no name for it before 2.41
_THIS_THREAD = 0


def step_back(nice: int) -> None:
    """Ordinary turns, and that much nicer than whoever has started us; for this thread and all that it starts."""
    set_scheduler_slice(
        ORDINARY_SLICE_NS
    )  # those of the broker that has started us are short, and threads inherit them
    os.nice(nice)


def set_scheduler_slice(slice_ns: int) -> bool:
    """For this thread and all that it starts from now on, processes too. False where it is not to be had.

    Whoever was started with a policy of its own (`chrt`) keeps it, and everybody keeps their niceness.
    """
    number = _CALL_NUMBERS.get(os.uname().machine)
    if number is None or os.sched_getscheduler(_THIS_THREAD) != os.SCHED_OTHER:
        return False
    import ctypes  # not needed for anything else, and 2 ms

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
    """To standard error, from the level INFO on. Does nothing where the program has said how it logs already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(part) if log_format == "json" else logging.Formatter(TEXT_LINE))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
