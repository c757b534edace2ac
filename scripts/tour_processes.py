"""The processes of the tour: a node, a pipeline on Spark, an archiver. Each in a group of its own, so that Ctrl-C
reaches the tour alone, which stops them one after the other: first those that use the node, then the node.
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

# A clean stop flushes what is open, and Spark ends the batch under way; longer than this, and something holds it.
STOP_TIMEOUT_S = 180.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOG_TAIL_LINES = 15


class TourFailed(Exception):
    """Something did not do what it should have."""


@contextmanager
def node(arguments: argparse.Namespace) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """The running node and what it said when it was ready."""
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
            raise TourFailed("the node did not start; its message is above")
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
    """A `headrace …` that runs beside the tour; what it says goes to a file."""
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
        """TourFailed if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise TourFailed(f"headrace {self._name} ended with {code}:\n{self.tail()}")

    def wait(self, seconds: float) -> None:
        """TourFailed unless it ends well in time."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TourFailed(f"headrace {self._name} does not end") from None
        if code:
            raise TourFailed(f"headrace {self._name} ended with {code}:\n{self.tail()}")

    def tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


def stop(process: subprocess.Popen[bytes], name: str) -> None:
    """Whether it ends of itself, is asked to, or has to be killed: it is gone afterwards."""
    if process.poll() is not None:
        return
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # an impatient second Ctrl-C must not leave anybody behind
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
        raise TourFailed(f"{name} ended with {code}")


def descendants(pid: int) -> list[int]:
    """Children and theirs: a pipeline's Spark has groups of its own, and would outlive the command that started it."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in tasks.read_text().split():
                found += [*descendants(int(child)), int(child)]
    return found
