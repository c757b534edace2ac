"""`headrace pipeline` without Spark: files to start from, how pipelines fare, and forgetting how far they have come."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from headrace.cli.app import run
from headrace.cli.common.exit_codes import FAILURE, NOT_FOUND, USAGE
from headrace.pipeline.progress import progress_of
from headrace.pipeline.state import STATE_VARIABLE, PipelineState
from headrace.pipeline.stored_definition import read_any

WAIT_S = 60
NOBODY = "127.0.0.1:1"  # where no broker is


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


def fares(root: Path, name: str, **figures: float) -> PipelineState:
    """A pipeline that has run, and told how it fared."""
    state = PipelineState(name, root)
    now_ms = int(time.time() * 1000)
    course = [asdict(progress_of(name, {}, at_ms=now_ms)) | figures | {"lag_records": lag} for lag in (1, 4, 8)]
    state.write("run", {"started_ms": now_ms, "stalled_after_ms": 60_000})
    state.write("progress", course[-1])
    state.write("recent", course)
    state.checkpoint.mkdir()
    state.log.write_text("first line\nlast line\n")
    return state


@pytest.mark.parametrize(("template", "suffix"), [("yaml", "yaml"), ("python", "py")])
def test_init_writes_a_pipeline_that_can_be_read(
    root: Path, capsys: pytest.CaptureFixture[str], template: str, suffix: str
) -> None:
    file = Path(f"totals.{suffix}")
    assert run(["pipeline", "init", "totals", "--template", template]) == 0
    assert f"`headrace pipeline check {file}`" in capsys.readouterr().err
    pipeline = read_any(file)
    assert (pipeline.name, pipeline.sink.target, pipeline.dead_letters) == ("totals", "totals", "totals.dead")
    file.write_text("mine")
    assert run(["pipeline", "init", "totals", "--template", template]) == FAILURE
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert run(["pipeline", "init", "totals", "--template", template, "--force"]) == 0
    assert read_any(file) is not None


def test_a_name_that_no_pipeline_can_have_is_refused_before_a_file_is_written(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "init", "to tals"]) == USAGE
    assert "letters, digits" in capsys.readouterr().err
    assert list(Path().glob("*.yaml")) == []


@pytest.mark.parametrize("command", [["status"], ["status", "totals"], ["list"]])
def test_status_and_list_are_a_table(root: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    fares(root, "totals", batch=17, rows_in_per_s=400.5, dead_letters_total=3, lag_s=2.5)
    with PipelineState("totals", root).held():
        assert run(["pipeline", *command]) == 0
    head, _, row = (line.split() for line in capsys.readouterr().out.strip().splitlines())
    assert head == ["pipeline", "state", "process", "batch", "rows/s", "batch", "ms", "lag", "lag", "s", "dead", "late"]
    assert row == ["totals", "running", str(os.getpid()), "17", "400.5", "0", "8", "2.5", "3", "0"]


def test_list_as_json_has_everything(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("b", "a"):
        fares(root, name, batch=2)
    assert run(["pipeline", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["pipeline"], one["state"], one["progress"]["batch"]) for one in told] == [
        ("a", "stopped", 2),
        ("b", "stopped", 2),
    ]


def test_metrics_are_printed_for_prometheus(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fares(root, "totals", rows_in_total=12, lag_s=2.5)
    assert run(["pipeline", "metrics"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'headrace_pipeline_rows_read_total{pipeline="totals"} 12' in lines
    assert 'headrace_pipeline_lag_seconds{pipeline="totals"} 2.5' in lines
    assert 'headrace_pipeline_state{pipeline="totals",state="stopped"} 1' in lines


def test_nothing_was_ever_started_here(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "list"]) == 0
    for command in (["status", "totals"], ["reset", "totals", "--yes"], ["logs", "totals"], ["stop", "totals"]):
        assert run(["pipeline", *command]) == NOT_FOUND
        assert "pipeline totals was never started on this host" in capsys.readouterr().err


def test_logs_end_with_what_was_said_last(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fares(root, "totals")
    assert run(["pipeline", "logs", "totals", "--lines", "1"]) == 0
    assert capsys.readouterr().out == "last line\n"


def test_reset_forgets_how_far_it_has_come(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, beside = fares(root, "totals"), fares(root, "totals+backfill")
    with beside.held():
        assert run(["pipeline", "reset", "totals", "--yes"]) == FAILURE
    assert "headrace pipeline stop totals+backfill" in capsys.readouterr().err
    assert state.checkpoint.exists()
    identity = state.identity()
    assert run(["pipeline", "reset", "totals", "--yes"]) == 0
    assert not state.checkpoint.exists()
    assert not beside.checkpoint.exists()
    assert state.read("progress") is None
    assert state.identity() == identity, "it is the same folder"


def test_start_returns_when_the_pipeline_is_held(root: Path) -> None:
    def start() -> tuple[int, str]:
        command = [sys.executable, "-m", "headrace.cli.main", "pipeline", "start", "totals.yaml", "--bootstrap", NOBODY]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stderr

    assert run(["pipeline", "init", "totals"]) == 0
    code, said = start()
    try:
        holder = PipelineState("totals", root).holder()
        assert (code, f"totals runs as process {holder};" in said) == (0, True)
        code, said = start()
        assert (code, f"totals is already running (process {holder})" in said) == (FAILURE, True)
    finally:
        assert run(["pipeline", "stop", "totals"]) == 0
    assert PipelineState("totals", root).holder() is None


def test_a_start_that_fails_late_is_no_start(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine so full of work that Python alone takes seconds to come up."""
    slow = root.with_name("slow")
    slow.write_text("#!/bin/sh\nsleep 2.5\nexit 1\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    assert run(["pipeline", "init", "totals"]) == 0
    assert run(["pipeline", "start", "totals.yaml", "--bootstrap", NOBODY]) == FAILURE
    assert "totals exited during its start" in capsys.readouterr().err


def test_watch_draws_until_it_is_interrupted(root: Path) -> None:
    fares(root, "totals", rows_in_per_s=1200)
    screen, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "headrace.cli.main", "pipeline", "status", "--watch"]
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment) as watching:
        os.close(terminal)
        drawn = b""
        while "▁▄█".encode() not in drawn:
            drawn += os.read(screen, 4096)  # ends with an error when the other side does
        watching.send_signal(signal.SIGINT)
        while _read(screen):
            pass
        assert watching.wait(WAIT_S) == 0
    os.close(screen)
    text = drawn.decode()
    assert "totals" in text
    assert "rows/s" in text
    assert "1,200" in text


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 4096)
    except OSError:  # how Linux says that nobody writes to this terminal any more
        return b""
