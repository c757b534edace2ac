"""Runs a fuzz target as a process of its own."""

import subprocess
import sys
from pathlib import Path

# Through a shell that forks: a process inherits the peak memory of whoever started it, and libFuzzer's limit would
# otherwise count what the test runner once held.
FORKING_SHELL = ("sh", "-c", '"$@"; exit $?', "sh")


def run_fuzzer(fuzzer: Path, arguments: list[str]) -> None:
    run = subprocess.run(
        [*FORKING_SHELL, sys.executable, str(fuzzer), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr[-4_000:]
    assert "Done" in run.stderr
