"""Who runs a pipeline, seen by several processes at once; and a supervisor whose worker does not stop."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.cli.pipeline.status import standing_of
from headrace.pipeline import supervisor as supervising
from headrace.pipeline.state import AlreadyRunning, PipelineState
from headrace.pipeline.supervisor import Supervisor
from headrace.process.restart_policy import FAILED
from tests.patience import until

WAIT_S = 60
CROWD = 4


def test_who_looks_keeps_nobody_from_starting(tmp_path: Path) -> None:
    ours, seen = PipelineState("p", tmp_path), PipelineState("p", tmp_path)
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.holder()

    watching = threading.Thread(target=look)
    watching.start()
    try:
        for _ in range(500):
            with ours.held():
                pass
    finally:
        done.set()
        watching.join()


def test_half_a_file_of_a_writer_that_was_killed_goes_and_that_of_one_at_work_stays(tmp_path: Path) -> None:
    state = PipelineState("p", tmp_path)
    state.make()
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    for writer in (killed.pid, os.getpid()):
        (state.folder / f"progress.{writer}.tmp").write_text("{")
    with state.held():
        assert [path.name for path in state.folder.glob("*.tmp")] == [f"progress.{os.getpid()}.tmp"]


def test_of_all_that_start_at_once_one_runs(tmp_path: Path) -> None:
    start = threading.Barrier(CROWD)
    refusals: list[str] = []

    def run() -> bool:
        start.wait()
        try:
            with PipelineState("p", tmp_path).held():
                until(lambda: len(refusals) == CROWD - 1, "all others are refused", WAIT_S)
        except AlreadyRunning as error:
            refusals.append(str(error))
            return False
        return True

    with ThreadPoolExecutor(CROWD) as crowd:
        ran = [one.result() for one in [crowd.submit(run) for _ in range(CROWD)]]
    assert ran.count(True) == 1
    assert all(f"process {os.getpid()}" in one for one in refusals)


@pytest.mark.parametrize("is_killed", [True, False])
def test_the_holder_is_not_the_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool) -> None:
    """It takes the lock first and says its name then; there may still be the name of one that was killed."""
    with subprocess.Popen(["true"]) as gone:
        pass
    state, pread = PipelineState("p", tmp_path), os.pread
    state.make()
    with (state.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(gone.pid if is_killed else "", end="", file=lock, flush=True)

        def says_its_name_after_the_first_look(descriptor: int, length: int, offset: int) -> bytes:
            seen = pread(descriptor, length, offset)
            os.ftruncate(lock.fileno(), 0)
            os.pwrite(lock.fileno(), str(os.getpid()).encode(), 0)
            return seen

        monkeypatch.setattr(os, "pread", says_its_name_after_the_first_look)
        assert state.holder() == os.getpid()


WRITER = """
import sys
from pathlib import Path
from headrace.pipeline.state import PipelineState

state = PipelineState("p", Path(sys.argv[1]))
sys.stdin.read()
for _ in range(1000):
    state.write("progress", sys.argv[2] * 10_000)
    assert state.read("progress") in ("a" * 10_000, "b" * 10_000)
"""


def test_two_processes_write_one_file_and_it_is_whole_at_any_time(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, who], stdin=subprocess.PIPE) for who in "ab"]
    for one in writers:
        assert one.stdin is not None
        one.stdin.close()  # both begin
    assert [one.wait(WAIT_S) for one in writers] == [0, 0]


DEAF = """\
#!/bin/sh
trap '' TERM
touch "$0.runs"
exec sleep 600
"""


def test_a_worker_that_does_not_stop_is_killed_when_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker"
    worker.write_text(DEAF)
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    monkeypatch.setattr(supervising, "STOP_PATIENCE_S", 0.1)
    state = PipelineState("p", tmp_path)
    supervisor = Supervisor(state, [])
    running = threading.Thread(target=supervisor.run, daemon=True)
    running.start()
    until((tmp_path / "worker.runs").exists, "the worker runs", WAIT_S)
    supervisor.ask_to_stop()
    running.join(WAIT_S)
    assert not running.is_alive()
    assert state.holder() is None


@pytest.mark.parametrize(("script", "is_known"), [("exit 0", True), ("exit 2", True), ("kill -9 $$", False)])
def test_query_on_connect_server_is_told_from_stopped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, is_known: bool
) -> None:
    """Only a worker that has ended by itself has ended its query on the server."""
    worker = tmp_path / "worker"
    worker.write_text(f'#!/bin/sh\ntouch "$0.runs"\n{script}\n')
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    state = PipelineState("p", tmp_path / "pipelines")
    supervisor = Supervisor(state, ["p.yaml", "--remote", "sc://spark:15002"])
    running = threading.Thread(target=supervisor.run)
    running.start()
    until((tmp_path / "worker.runs").exists, "the worker runs", WAIT_S)
    if not is_known:
        until(lambda: state.read("failure") is not None, "it was killed", WAIT_S)
        supervisor.ask_to_stop()
    running.join(WAIT_S)
    said = standing_of(state)
    if is_known:
        assert (said["state"], said["reason"]) == ("failed" if "2" in script else "stopped", None)
    else:
        assert said["state"] == "failed"
        assert "may still run at sc://spark:15002" in said["reason"]


END = """
import signal, sys, time
from headrace.spark.pipeline.worker import ended

class Claimed:
    def lost_to(self):
        print("asking", flush=True)
        time.sleep(600)

signal.signal(signal.SIGTERM, lambda *_: None)
sys.exit(ended(Claimed(), RuntimeError("the JVM is gone"), was_asked=sys.argv[1] == "asked"))
"""


def test_a_worker_that_has_failed_waits_for_no_broker_once_it_shall_stop() -> None:
    before, during = (
        subprocess.Popen([sys.executable, "-c", END, when], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for when in ("asked", "not yet")
    )
    with before, during:
        assert before.wait(WAIT_S) == FAILED
        assert during.stdout is not None
        assert during.stdout.readline() == b"asking\n"
        during.terminate()
        assert during.wait(WAIT_S) == -signal.SIGTERM
