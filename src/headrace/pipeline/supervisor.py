"""Supervises one pipeline: starts its worker, restarts it after failures, forwards stop requests."""

import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time

from headrace.pipeline.state import PipelineState
from headrace.process.restart_policy import DISK_FULL, DONE, FAILED, REFUSED, TAKEN_OVER, RestartPolicy, failure_code

log = logging.getLogger(__name__)

# Spark needs a while to finish a batch and to close. A worker that runs longer is killed.
STOP_PATIENCE_S = 120.0
# Python resumes the wait for the worker after a signal. This bounds the delay until a stop is noticed.
LOOK_S = 1.0


class Supervisor:
    def __init__(self, state: PipelineState, worker: list[str]) -> None:
        self._state = state
        self._command = [sys.executable, "-m", "headrace.spark.pipeline.worker", *worker]
        self._stop = threading.Event()
        self._stop_by = math.inf  # when a worker that is stopping is killed
        self._child: subprocess.Popen[bytes] | None = None

    def ask_to_stop(self, *_: object) -> None:
        self._stop_by = min(self._stop_by, time.monotonic() + STOP_PATIENCE_S)
        self._stop.set()
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def run(self) -> int:
        """Runs until the pipeline is done, is rejected, or a stop is requested. Returns its last exit code."""
        restarts = RestartPolicy()
        with self._state.held():
            self._remember(DONE)
            self._note_remote()
            while True:
                began = time.monotonic()
                code = self._attempt()
                if code in (DONE, REFUSED, TAKEN_OVER):  # in these cases the worker has ended its queries
                    self._state.clear("remote")
                again = restarts.after(code, time.monotonic() - began)
                self._remember(code)
                if again is None or self._stop.is_set():
                    return FAILED if code == DISK_FULL else code
                pause_s, restarts = again
                log.warning("pipeline %s ended with %d; starting again in %.0f s", self._state.name, code, pause_s)
                self._stop.wait(pause_s)
                if self._stop.is_set():
                    self._remember(DONE)
                    return code

    def _note_remote(self) -> None:
        """Records the Spark Connect server: a query there outlives the processes here if they are killed."""
        if "--remote" not in self._command:
            return
        try:
            self._state.write("remote", self._command[self._command.index("--remote") + 1])
        except OSError as error:
            log.error("pipeline %s: its state directory cannot be written (%s)", self._state.name, error)

    def _remember(self, code: int) -> None:
        """Records the exit code for `headrace pipeline status`. Clears it after a requested stop."""
        has_ended = code == DONE or self._stop.is_set()
        try:
            self._state.note("failure", None if has_ended else {"exit_code": code, "at_ms": int(time.time() * 1000)})
        except OSError as error:
            log.error("pipeline %s: its state directory cannot be written (%s)", self._state.name, error)

    def _attempt(self) -> int:
        """Runs the worker. A process that cannot be started now may start later, for example when the disk is full."""
        try:
            return self._run_once()
        except OSError as error:
            log.error("pipeline %s: its worker cannot be run (%s)", self._state.name, error)
            return failure_code(error)

    def _run_once(self) -> int:
        # A process group of its own: Ctrl-C in the terminal signals the supervisor only, which lets the worker finish
        # its batch.
        with subprocess.Popen(self._command, process_group=0) as child:
            self._child = child
            if self._stop.is_set():
                child.send_signal(signal.SIGTERM)
            while True:
                try:
                    return child.wait(LOOK_S)
                except subprocess.TimeoutExpired:
                    if time.monotonic() >= self._stop_by:
                        log.error("pipeline %s does not stop; killing it", self._state.name)
                        os.killpg(child.pid, signal.SIGKILL)
                        return child.wait()


def main(arguments: list[str]) -> int:
    """Arguments: name, state directory, then the worker's own arguments."""
    from pathlib import Path

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    name, root, *worker = arguments
    supervisor = Supervisor(PipelineState(name, Path(root)), worker)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.ask_to_stop)
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
