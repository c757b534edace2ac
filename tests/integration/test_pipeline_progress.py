"""What a pipeline tells the cluster of itself: its progress, and that it makes none."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from headrace.client.sync.client import ClientConfig, Cluster, create_topic_if_missing
from headrace.client.sync.fetcher import read_committed_records
from headrace.pipeline.state import PipelineState
from headrace.spark.pipeline.progress_reporter import PROGRESS_TOPIC, ProgressReporter

LONG_MS = 60_000


class Query:
    """What Spark shows of a query: progress, in the order of its times."""

    def __init__(self) -> None:
        self.runId = uuid4()
        self.recentProgress: list[Any] = []

    def ends_batch(self, number: int) -> None:
        progress = {"batchId": number, "timestamp": f"2026-01-01T00:00:{number:02}Z"}
        self.recentProgress.append(SimpleNamespace(json=json.dumps(progress)))


class Stage:
    def __init__(self, settings: ClientConfig, folder: Path) -> None:
        self.name = f"p-{uuid4().hex[:8]}"
        self.state = PipelineState(self.name, folder)
        self.query: Any = Query()
        self.cluster = Cluster(settings)
        create_topic_if_missing(self.cluster, PROGRESS_TOPIC)
        self.now_ms = 1_700_000_000_000
        self.teller = ProgressReporter(self.state, settings, lambda: self.now_ms)

    def told(self) -> list[tuple[int, str]]:
        """Batch and state of every report of this pipeline."""
        self.teller.close()
        reports = [
            json.loads(record.value or b"") for _, record in read_committed_records(self.cluster, PROGRESS_TOPIC)
        ]
        return [(one["batch"], one["state"]) for one in reports if one["pipeline"] == self.name]


@pytest.fixture
def stage(kafka_broker, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(ClientConfig(bootstrap=kafka_broker.bootstrap, patience_s=30), tmp_path)
    yield stage
    stage.cluster.close()


def test_a_stall_is_told_once_and_is_over_with_the_next_batch(stage: Stage) -> None:
    stage.teller.begin(LONG_MS)
    stage.query.ends_batch(4)
    stage.teller.tell([stage.query])
    stage.now_ms += LONG_MS
    stage.teller.tell([stage.query])
    assert stage.told() == [(4, "running")]
    for _ in range(3):
        stage.now_ms += 1
        stage.teller.tell([stage.query])
    assert stage.told() == [(4, "running"), (4, "stalled")]
    assert stage.state.read("progress")["state"] == "running", "the folder has the last progress, and when that was"
    stage.query.ends_batch(5)
    stage.teller.tell([stage.query])
    stage.now_ms += LONG_MS + 1
    stage.teller.tell([stage.query])
    assert stage.told() == [(4, "running"), (4, "stalled"), (5, "running"), (5, "stalled")]


def test_error_in_report_does_not_end_the_pipeline(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.state.folder.write_text("a file where the state directory should be")
    stage.teller.begin(LONG_MS)
    stage.query.ends_batch(1)
    for _ in range(3):
        stage.teller.tell([stage.query])
    broken: Any = Query()
    broken.recentProgress = None  # the query has ended, and Spark does not answer
    stage.teller.tell([broken])
    assert caplog.text.count("Cannot report the progress") == 1, "said once until it goes well"
    stage.state.folder.unlink()
    stage.query.ends_batch(2)
    stage.teller.tell([stage.query])
    assert stage.told() == [(1, "running"), (2, "running")], "the cluster is told whatever the disk does"
    assert (stage.state.read("run") or {})["stalled_after_ms"] == LONG_MS
    assert stage.state.read("progress")["batch"] == 2


def test_one_that_never_ended_a_batch_can_stall_too(stage: Stage) -> None:
    stage.teller.begin(LONG_MS)
    stage.now_ms += LONG_MS + 1
    stage.teller.tell([stage.query])
    assert stage.told() == [(-1, "stalled")]
