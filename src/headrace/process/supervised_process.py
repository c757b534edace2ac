"""A process that is restarted whenever it ends unexpectedly, after a pause that doubles while it keeps failing.

Time is an argument. Starts may be slow and run on the given pool, so that the supervisor of several processes blocks
on none of them.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from headrace.model.errors import HeadraceError

# As in supervisor.py: a single crash is followed by a quick restart, and a process that fails at every start uses
# little CPU.
PAUSE_S_MIN, PAUSE_S_MAX = 0.2, 5.0
PROVEN_S = 30.0  # a process that ran this long is restarted with the shortest pause
FAILURES = (HeadraceError, RuntimeError, OSError)  # of a start; retriable


class ChildHandle(Protocol):
    pid: int

    def ended_by_itself(self) -> str | None:
        """Returns how it ended although it was not stopped; None while it runs."""

    def stop(self) -> None: ...

    def kill(self) -> None: ...


Process = TypeVar("Process", bound=ChildHandle)


class SupervisedProcess(Generic[Process]):
    def __init__(self, name: str, start: Callable[[], Process], pool: Executor, now_s: float) -> None:
        """Starts the process for the first time. A failure of this start is raised and not retried."""
        self._name = name
        self._start = start
        self._pool = pool
        self._process: Process | None = start()
        self._starting: Future[Process] | None = None
        self._began_s = now_s
        self._due_s = 0.0
        self._pause_s = PAUSE_S_MIN
        self.pid = self._process.pid  # the previous pid while no process runs

    def look(self, now_s: float) -> str | None:
        """Polls the process and restarts it when due. Returns a message about what has happened, or None."""
        if self._starting is not None:
            return self._looked_at_start(self._starting, now_s)
        if self._process is not None:
            return self._looked_at_life(self._process, now_s)
        if now_s >= self._due_s:
            self._starting = self._pool.submit(self._start)
        return None

    def _looked_at_life(self, process: Process, now_s: float) -> str | None:
        reason = process.ended_by_itself()
        if reason is None:
            return None
        process.kill()  # it has ended; this releases its resources
        self._process = None
        if now_s - self._began_s >= PROVEN_S:
            self._pause_s = PAUSE_S_MIN
        return self._rests(f"has ended ({reason})", now_s)

    def _looked_at_start(self, starting: "Future[Process]", now_s: float) -> str | None:
        if not starting.done():
            return None
        self._starting = None
        try:
            self._process = starting.result()
        except FAILURES as error:
            return self._rests(f"could not be started ({_last_line(error)})", now_s)
        self.pid, self._began_s = self._process.pid, now_s
        return f"{self._name} runs again, pid {self.pid}"

    def _rests(self, what: str, now_s: float) -> str:
        pause_s = self._pause_s
        self._due_s, self._pause_s = now_s + pause_s, min(pause_s * 2, PAUSE_S_MAX)
        return f"{self._name} {what} and is started again in {pause_s:g} s"

    def stop(self) -> None:
        """Stops the process permanently. Waits for a start in progress."""
        starting, self._starting = self._starting, None
        if starting is not None:
            with suppress(*FAILURES):
                self._process = starting.result()
        process, self._process = self._process, None
        if process is not None:
            if process.ended_by_itself() is None:
                process.stop()
            else:
                process.kill()


def _last_line(error: Exception) -> str:
    """Returns the last line of an error: of a failed broker's output, the last line has the reason."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
