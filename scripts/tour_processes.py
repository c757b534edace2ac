"""The processes of the demo: a node, a Spark pipeline, an archiver.

Each has a process group of its own, so that only the demo receives Ctrl-C. It stops the clients first, then the node.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.config.settings import GatewaySettings, Listener, Settings, split_address

# A clean stop flushes the logs, and Spark completes the current batch.
STOP_TIMEOUT_S = 180.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOG_TAIL_LINES = 15


class TourFailed(Exception):
    """A step of the demo failed."""


@contextmanager
def node(arguments: argparse.Namespace) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Starts a node; yields its process and its ready message."""
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [
            *[sys.executable, "-m", "headrace.app.node"],
            *["--settings-json", settings_json(arguments)],
            *["--ready-fd", str(write_end)],
        ],
        pass_fds=[write_end],
        stdin=subprocess.DEVNULL,
        process_group=0,
    )
    os.close(write_end)
    try:
        with os.fdopen(read_end) as ready:
            line = ready.readline()
        if not line:
            raise TourFailed("the node did not start; see its message above")
        yield process, json.loads(line)
    finally:
        stop(process, "the node")


def settings_json(arguments: argparse.Namespace) -> str:
    listener = Listener.parse(f"PLAINTEXT://{arguments.listen}")
    host, port = split_address(arguments.http)
    grpc_host, grpc_port = split_address(arguments.grpc)
    gateway = GatewaySettings(host=host, port=port, grpc_host=grpc_host, grpc_port=grpc_port)
    return Settings(listeners=(listener,), data_dir=arguments.data_dir, gateway=gateway).to_json()


@contextmanager
def command(*words: str, log: Path, environment: dict[str, str]) -> Iterator["Command"]:
    """Runs a `headrace` command in the background, with its output in a file."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", *words],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )
    try:
        yield Command(process, " ".join(words[:2]), log)
    finally:
        stop(process, " ".join(words[:2]))


class Command:
    def __init__(self, process: subprocess.Popen[bytes], name: str, log: Path) -> None:
        self._process, self._name, self._log = process, name, log

    def check(self) -> None:
        """Raises TourFailed if the process has exited."""
        code = self._process.poll()
        if code is not None:
            raise TourFailed(f"headrace {self._name} ended with {code}:\n{self.tail()}")

    def wait(self, seconds: float) -> None:
        """Waits for the process; raises TourFailed on a timeout or an exit code other than 0."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TourFailed(f"headrace {self._name} did not exit within {seconds:.0f} s") from None
        if code:
            raise TourFailed(f"headrace {self._name} ended with {code}:\n{self.tail()}")

    def tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


def stop(process: subprocess.Popen[bytes], name: str) -> None:
    """Stops the process with SIGTERM; kills it and its descendants after STOP_TIMEOUT_S."""
    if process.poll() is not None:
        return
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
    process.terminate()
    try:
        code = process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        for pid in [*descendants(process.pid), process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        raise TourFailed(f"{name} did not stop within {STOP_TIMEOUT_S:.0f} s and was killed") from None
    if code not in (0, -signal.SIGTERM):
        raise TourFailed(f"{name} exited with code {code}")


def descendants(pid: int) -> list[int]:
    """Returns all descendants. A pipeline's Spark has process groups of its own and could outlive its command."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in tasks.read_text().split():
                found += [*descendants(int(child)), int(child)]
    return found
