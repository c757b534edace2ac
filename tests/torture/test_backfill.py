"""A backfill that is killed at every step of its life, by the command line, and the stream that goes on behind it.

Its steps are what it leaves on the disk: as soon as one is seen, everything dies that works on it. The same command
goes on each time, and in the end every record was read once, by the backfill or by the stream.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import psutil
import pytest

from headrace.testing import LocalBroker
from tests.torture.pipeline_stage import RECORDS_BETWEEN_KILLS, WAIT_S, Stage, reference
from tests.torture.plan import Dice, kills


def _pinned(folder: Path) -> bool:
    return (folder / "backfill.json").exists()


def _begun(folder: Path) -> bool:
    return (folder / "starts.json").exists()


def _batch(kind: str, least: int) -> Callable[[Path], bool]:
    """Spark's first batch writes down where it begins; rows come from the second on."""
    return lambda folder: (folder / "checkpoint" / kind / str(least)).exists()


def _done(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        return bool(json.loads((folder / "backfill.json").read_text())["done"])
    return False


STEPS: tuple[tuple[str, Callable[[Path], bool]], ...] = (
    ("where it begins is written", _begun),
    ("where it ends is written", _pinned),
    ("its first batch is planned", _batch("offsets", 0)),
    ("a batch with rows is planned", _batch("offsets", 1)),
    ("a batch with rows is done", _batch("commits", 1)),
    ("the next is planned", _batch("offsets", 2)),
    ("the next is done", _batch("commits", 2)),
    ("it has said that it is done", _done),
)


class Backfill:
    """`headrace pipeline backfill`, as a process that can be killed with everything it has started."""

    def __init__(self, stage: Stage) -> None:
        where = {"HEADRACE_PIPELINES": str(stage.state), "HEADRACE_BOOTSTRAP": stage.broker.bootstrap}
        words = [sys.executable, "-m", "headrace.cli.main", "pipeline", "backfill", str(stage.file)]
        self._log = stage.file.with_suffix(".log")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(words, env=os.environ | where, stdout=log, stderr=log)

    def __enter__(self) -> "Backfill":
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever became of the test, nobody is left."""
        if self._process.poll() is None:
            own = psutil.Process(self._process.pid)
            family = [own, *own.children(recursive=True)]
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGKILL)
            psutil.wait_procs(family)
            self._process.wait()

    def reaches(self, step: Callable[[Path], bool], folder: Path) -> bool:
        """False: it ended before the step was seen."""
        deadline = time.monotonic() + WAIT_S
        while not step(folder):
            if self._process.poll() is not None:
                assert self._process.returncode == 0, self.said()
                return False
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.002)
        return True

    def finish(self) -> None:
        assert self._process.wait(WAIT_S) == 0, self.said()

    def said(self) -> str:
        return self._log.read_text()[-4000:]


# With `make interop`, and at length with `make torture`: each kill costs a start of Spark.
@pytest.mark.interop
@pytest.mark.timeout(2 * WAIT_S * (kills(1) + 2))
def test_history_is_read_once_at_whichever_step_it_is_killed(dice: Dice, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    died: list[str] = []
    with LocalBroker(memory=False) as broker:
        for life in count():
            folder = tmp_path / str(life)
            folder.mkdir()
            stage = Stage(broker, folder, dice, name=f"golden-{life}", starting="latest")
            died += _one_life(stage, dice, kills(1) - len(died))
            if len(died) >= kills(1):
                break
    print(f"{len(died)} kills, each at another step in turn, in {life + 1} backfills: {sorted(set(died))}")


def _one_life(stage: Stage, dice: Dice, kills_left: int) -> list[str]:
    """From nothing to a stream that has taken over, killed at as many of the steps as there are kills left."""
    chosen = sorted(dice.sample(range(len(STEPS)), min(kills_left, len(STEPS))))
    died = []
    try:
        stage.send(RECORDS_BETWEEN_KILLS + 1000)
        for name, step in (STEPS[index] for index in chosen):
            with Backfill(stage) as backfill:
                if backfill.reaches(step, stage.state / stage.name):
                    died.append(name)
            stage.send(dice.randrange(100))  # too late to be history, if its end is written
        with Backfill(stage) as backfill:
            backfill.finish()
        stage.headrace("start", str(stage.file))
        stage.send(100)
        stage.check()
    finally:
        stage.end()
    print(f"{len(stage.sent)} records, {sum(reference(one) is None for one in stage.sent)} of them poison, each once")
    return died
