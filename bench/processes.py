"""Everything the bench starts, started and stopped here by its own pid. Knows nothing of brokers or measures.

Each child leads a session of its own: Ctrl-C reaches only the bench, which then stops its children in order,
and a child's own children go with it.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

Process = subprocess.Popen[bytes]

STOP_GRACE_S = 120.0  # Kafka with 10,000 partitions needs most of a minute to close its logs
KILL_GRACE_S = 30.0  # SIGKILL is final, but the kernel may still have gigabytes of the dead to free
ERROR_TAIL_BYTES = 2_000


class BenchError(Exception):
    """A sample could not be taken; the message says why and the run goes on with the next one."""


class NotServed(BenchError):
    """The broker does not offer what the sample needs: told on the page, but no failure of the run."""


class Processes:
    """The children alive now. Leaving the context stops them all."""

    def __init__(self) -> None:
        self._alive: dict[int, Process] = {}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in list(self._alive.values()):
            self.kill(process)

    def start(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> Process:
        """Start a child whose output goes to `log` (its stdout elsewhere if asked)."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                list(command),
                stdin=stdin,
                stdout=out if stdout is None else stdout,
                stderr=out,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self._alive[process.pid] = process
        return process

    def run(self, command: Sequence[str], *, log: Path, timeout_s: float) -> str:
        """Run a child to its end and return what it printed."""
        process = self.start(command, log=log, stdout=subprocess.PIPE)
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as expired:
            raise BenchError(f"{Path(command[0]).name} did not end within {timeout_s:.0f} s") from expired
        finally:
            self.kill(process)
        if process.returncode:
            text = (output.decode(errors="replace") + tail(log)).strip()
            raise BenchError(f"{Path(command[0]).name} ended with {process.returncode}: {text}")
        return output.decode(errors="replace")

    def stop(self, process: Process) -> None:
        """Ask a child to end, and wait for it; if it does not, end it."""
        self._signal(process, signal.SIGTERM)
        try:
            process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill(process)
            raise BenchError(f"process {process.pid} did not stop within {STOP_GRACE_S:.0f} s") from None
        finally:
            self.kill(process)

    def kill(self, process: Process) -> None:
        """End a child and whatever it left in its session."""
        with suppress(ProcessLookupError):  # it has ended, and so has everyone it started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(KILL_GRACE_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._alive.pop(process.pid, None)

    @staticmethod
    def pause(pid: int) -> None:
        """Stop a child and its own children where they are."""
        os.killpg(pid, signal.SIGSTOP)

    @staticmethod
    def resume(pid: int) -> None:
        os.killpg(pid, signal.SIGCONT)

    @staticmethod
    def _signal(process: Process, number: signal.Signals) -> None:
        if process.poll() is None:
            process.send_signal(number)


def tail(log: Path) -> str:
    """The end of a log, for the message of an error."""
    try:
        return log.read_bytes()[-ERROR_TAIL_BYTES:].decode(errors="replace")
    except FileNotFoundError:
        return ""
