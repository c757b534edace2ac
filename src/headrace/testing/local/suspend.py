"""Suspends and resumes processes with SIGSTOP and SIGCONT. Linux only."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STOP_SECONDS_MAX = 10.0  # takes microseconds; longer while a thread waits for a CPU or a disk
_ASK_AGAIN_SECONDS = 0.001


def suspend(pid: int) -> None:
    """Suspends a process. Returns when all of its threads have stopped.

    The signal alone is asynchronous: one thread has to be scheduled to deliver it, and on a busy host the others may
    still handle a request or two that arrive after the signal.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while not all(state == "T" for state in _states(pid)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} still runs {STOP_SECONDS_MAX:g} s after SIGSTOP")
        time.sleep(_ASK_AGAIN_SECONDS)


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> Iterator[str]:
    """Yields the state letter of each thread from /proc, which follows the command's name in parentheses."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError, FileNotFoundError):  # the thread has ended
            yield (thread / "stat").read_text().rpartition(")")[2].split()[0]
