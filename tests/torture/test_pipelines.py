"""A pipeline as its users run it, by the command line, while its processes and the broker are killed."""

import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace.testing import LocalBroker
from tests.patience import awaited
from tests.torture.pipeline_stage import RECORDS_BETWEEN_KILLS, WAIT_S, Stage, reference
from tests.torture.plan import Dice, kills


@pytest.mark.timeout(2 * WAIT_S * (kills(1, times=2) + 2))
def test_a_pipeline_makes_what_plain_python_makes_whoever_dies(dice: Dice, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    died: Counter[str] = Counter()
    with LocalBroker(memory=False) as broker:
        stage = Stage(broker, tmp_path, dice)
        try:
            stage.send(RECORDS_BETWEEN_KILLS)
            stage.headrace("start", str(stage.file))
            assert "is already running" in stage.headrace("start", str(stage.file), succeeds=False)
            while died.total() < kills(1, times=2):
                stage.wait_for_rows(len(stage.rows()) + 1)
                stage.send(dice.randrange(RECORDS_BETWEEN_KILLS))
                time.sleep(dice.random())
                victim = _next_victim(dice, died)
                stage.kill(victim)
                died[victim] += 1
            stage.check()
            _wait_until_it_rests(stage)
            _is_refused_elsewhere(stage, tmp_path)
            progress = stage.status()["progress"]
            assert progress["lag_records"] == 0
            stage.headrace("stop", "golden")
            assert stage.status()["state"] == "stopped"
            assert 'headrace_pipeline_up{pipeline="golden"} 0' in stage.headrace("metrics")
        finally:
            stage.end()
    poison = sum(reference(value) is None for value in stage.sent)
    print(f"{died.total()} kills: {dict(died)}; {len(stage.sent)} records, {poison} of them poison, each once")


def _next_victim(dice: Dice, died: Counter[str]) -> str:
    """The worker always, since a run in the tests has few kills; then those first who have not died yet."""
    if not died:
        return "worker"
    everybody = ("worker", "supervisor", "broker")
    return dice.choice([name for name in everybody if name not in died] or everybody)


def _wait_until_it_rests(stage: Stage) -> None:
    """Its last rows are there before it tells of them, and what it told before it was killed may be old."""
    awaited(
        stage.status,
        lambda found: found["state"] == "running" and (found["progress"] or {}).get("lag_records") == 0,
        lambda: f"it runs and lags behind nothing\n{stage.headrace('logs', stage.name)}",
        WAIT_S,
    )


def _is_refused_elsewhere(stage: Stage, folder: Path) -> None:
    """From another machine, as far as the cluster can tell: another folder."""
    said = stage.headrace("run", str(stage.file), succeeds=False, state=folder / "elsewhere")
    assert "belongs to the state directory" in said
    assert stage.status()["state"] == "running"
