"""`headrace cluster`: up, looked at, refused twice, down."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.local_broker import reserve_port

PATIENCE_S = 120


def headrace(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "headrace.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def free_base(count: int) -> int:
    """A port after which so many are free."""
    while True:
        with reserve_port(0) as first:
            base = first.getsockname()[1]
        try:
            for number in range(1, count + 1):
                reserve_port(base + number).close()
        except OSError:
            continue
        return base


def test_a_cluster_goes_up_and_down(tmp_path: Path) -> None:
    base, folder = free_base(3), str(tmp_path / "c")
    command = [sys.executable, "-m", "headrace.cli.main", "cluster", "up", "--dir", folder, "--listen-base", str(base)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(4)]
        assert lines[3].strip() == "bootstrap: " + ",".join(f"127.0.0.1:{base + number}" for number in (1, 2, 3))
        pids = [int(line.split()[-1]) for line in lines[:3]]
        bootstrap = ("--bootstrap", f"127.0.0.1:{base + 2}")
        assert headrace("topics", "create", "t", "--replication-factor", "3", *bootstrap).returncode == 0
        assert headrace("produce", "t", "hello", *bootstrap).returncode == 0
        seen = headrace("cluster", "status", *bootstrap)
        assert "0 under-replicated, 0 without a leader" in seen.stdout, seen
        again = headrace("cluster", "up", "--dir", folder, "--listen-base", str(base))
        assert again.returncode == 1
        assert "headrace cluster down" in again.stderr
        assert headrace("cluster", "down", "--dir", folder).returncode == 0
        assert running.wait(PATIENCE_S) == 0
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGTERM)
            running.wait(PATIENCE_S)
        running.communicate()
    assert headrace("cluster", "down", "--dir", folder).returncode == 3
