"""Processes that stand still: SIGSTOP, and back to life.

Decides when a process counts as stopped. Linux.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STOP_SECONDS_MAX = 10.0  # microseconds; more when one of its threads has to wait for a processor, or for a disk
_ASK_AGAIN_SECONDS = 0.001


def suspend(pid: int) -> None:
    """Return when none of its threads runs any more.

    The signal alone only asks for it: one thread has to be scheduled to pass the word on, and on a busy machine the
    others may meanwhile answer a request or two that was sent after the signal.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while not all(state == "T" for state in _states(pid)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} was told to stop {STOP_SECONDS_MAX:g} s ago and still runs")
        time.sleep(_ASK_AGAIN_SECONDS)


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> Iterator[str]:
    """One letter for each thread, as /proc has it: it stands behind the command's name in parentheses."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError, FileNotFoundError):  # the thread has ended meanwhile
            yield (thread / "stat").read_text().rpartition(")")[2].split()[0]
