"""`headrace cluster`: up, looked at, refused twice, killed and back, down."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.app.local_cluster.control import read_state
from headrace.app.local_cluster.runner import ETCD_PORTS_ABOVE
from tests.integration.port_row import reserved_base
from tests.patience import awaited, until

PATIENCE_S = 120


def headrace(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "headrace.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.fixture
def base() -> Iterator[int]:
    with reserved_base(3) as port:
        yield port


class Up:
    """`headrace cluster up`, as a process that says what it does."""

    def __init__(self, folder: Path, base: int, *more: str) -> None:
        self.folder, self.base = str(folder / "c"), base
        words = ["cluster", "up", "--dir", self.folder, "--listen-base", str(self.base), *more]
        self._errors = folder / "errors"
        with self._errors.open("w") as errors:
            command = [sys.executable, "-m", "headrace.cli.main", *words]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.bootstrap = ("--bootstrap", f"127.0.0.1:{self.base + 2}")
        self.lines: list[str] = []
        self.pids: list[int] = []

    def wait_for(self, text: str) -> None:
        until(lambda: text in self._errors.read_text(), lambda: f"{text}:\n{self._errors.read_text()}", PATIENCE_S)

    def wait_until_well(self) -> None:
        wanted = "0 under-replicated, 0 without a leader"
        awaited(
            lambda: headrace("cluster", "status", *self.bootstrap).stdout,
            lambda told: wanted in told,
            wanted,
            PATIENCE_S,
        )

    def __enter__(self) -> "Up":
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline() for _ in range(4)]
        if not self.lines[-1]:
            self.__exit__()
            raise AssertionError(self._errors.read_text())
        self.pids = [int(line.split()[-1]) for line in self.lines[:3]]
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(PATIENCE_S)
        self.process.communicate()


def test_a_cluster_goes_up_and_down(tmp_path: Path, base: int) -> None:
    with Up(tmp_path, base) as up:
        assert up.lines[3].strip() == "bootstrap: " + ",".join(f"127.0.0.1:{up.base + number}" for number in (1, 2, 3))
        assert headrace("topics", "create", "t", "--replication-factor", "3", *up.bootstrap).returncode == 0
        assert headrace("produce", "t", "hello", *up.bootstrap).returncode == 0
        up.wait_until_well()
        again = headrace("cluster", "up", "--dir", up.folder, "--listen-base", str(up.base))
        assert again.returncode == 1
        assert "headrace cluster down" in again.stderr
        assert headrace("cluster", "down", "--dir", up.folder).returncode == 0
        assert up.process.wait(PATIENCE_S) == 0
        for pid in up.pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    assert headrace("cluster", "down", "--dir", up.folder).returncode == 3


def test_what_is_killed_is_started_again_and_nothing_is_lost(tmp_path: Path, base: int) -> None:
    with Up(tmp_path, base) as up:
        assert headrace("topics", "create", "t", "--replication-factor", "3", *up.bootstrap).returncode == 0
        assert headrace("produce", "t", "before", *up.bootstrap).returncode == 0
        (facts,) = [
            one.pid
            for one in psutil.Process(up.process.pid).children()
            if "headrace.app.metadata_server" in one.cmdline()
        ]
        os.kill(up.pids[0], signal.SIGKILL)
        up.wait_for("broker 1 has ended (exit code -9) and is started again in 0.2 s")
        up.wait_for("broker 1 runs again, pid ")
        os.kill(facts, signal.SIGKILL)
        up.wait_for("the metadata process has ended (exit code -9)")
        up.wait_for("the metadata process runs again")
        assert headrace("topics", "create", "u", "--replication-factor", "3", *up.bootstrap).returncode == 0
        assert headrace("produce", "t", "after", *up.bootstrap).returncode == 0
        up.wait_until_well()
        state = read_state(up.folder)
        assert state is not None
        assert state.nodes[0].pid not in up.pids
        read = headrace("consume", "t", *up.bootstrap)
        assert sorted(read.stdout.split()) == ["after", "before"], read
    with_etcd = headrace("cluster", "up", "--dir", up.folder, "--listen-base", str(up.base), "--etcd")
    assert with_etcd.returncode == 1
    assert "leave --etcd out, or choose another --dir" in with_etcd.stderr


@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd (Debian: etcd-server)")
def test_a_cluster_with_etcd_survives_the_death_of_everybody(tmp_path: Path, base: int) -> None:
    with Up(tmp_path, base, "--etcd") as up:
        assert headrace("topics", "create", "t", "--replication-factor", "3", *up.bootstrap).returncode == 0
        assert headrace("produce", "t", "before", *up.bootstrap).returncode == 0
        refused = headrace("cluster", "remove", "1", "--dir", up.folder, "--yes", *up.bootstrap)
        assert refused.returncode == 1
        assert "broker 1 cannot be removed, because an etcd member runs with it" in refused.stderr
        for pid in up.pids:
            os.kill(pid, signal.SIGKILL)
        for number in (1, 2, 3):
            up.wait_for(f"broker {number} runs again")
        assert headrace("produce", "t", "after", *up.bootstrap).returncode == 0
        up.wait_until_well()
    assert up.process.returncode == 0, "all of them had time to stop"
    moved = headrace("cluster", "up", "--dir", up.folder, "--listen-base", str(up.base + 10))
    assert moved.returncode == 1
    assert f"is the etcd member at 127.0.0.1:{up.base + ETCD_PORTS_ABOVE + 1}" in moved.stderr
    assert "serves" not in moved.stderr, "what earlier lives have said is not why this one failed"
    with Up(tmp_path, base) as again:  # that it has etcd is seen in its folders
        read = headrace("consume", "t", *again.bootstrap)
        assert sorted(read.stdout.split()) == ["after", "before"], read
