"""How the processes of a node share processors: the broker asks for short turns, those beside it step back.

On a busy processor Linux lets whoever runs go on for about 3 ms before the next one has its turn. A thread may ask for
shorter turns (`sched_setattr`, since Linux 6.12): it gets no larger share, but gets it as soon as it has something to
do, which for a request of 0.1 ms makes all the difference. No privilege is needed. docs/adr/0023 has what it gives.

Those beside the broker ask for ordinary turns and for less of a busy processor than others (`nice`), so that whoever
else wakes up waits less for them. That needs no new kernel. docs/adr/0024 has what it gives.
"""

import logging
import os
import struct

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
    ask_for_turns_of(ORDINARY_SLICE_NS)  # those of the broker that has started us are short, and threads inherit them
    os.nice(nice)


def ask_for_turns_of(slice_ns: int) -> bool:
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
