"""A pipeline whose checkpoint was restored from a backup is refused before it starts. No JVM is needed."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from headrace.client.reader.arrow_reader import close_clusters, cluster_for  # noqa: E402
from headrace.client.sync.client import (  # noqa: E402
    ClientConfig,
    create_topic_if_missing,
)
from headrace.client.sync.fetcher import read_committed_records  # noqa: E402
from headrace.lake.table import Batch, LakeTable, commit_once  # noqa: E402
from headrace.pipeline.definition import Pipeline, Sink, SinkKind, Source  # noqa: E402
from headrace.spark.connector.checkpoint import CheckpointMismatch, batch_ends  # noqa: E402
from headrace.spark.connector.exactly_once import Decision, ExactlyOnceCommitter, task_id  # noqa: E402
from headrace.spark.connector.task_writer import write_in_transaction  # noqa: E402
from headrace.spark.connector.write_options import write_options  # noqa: E402
from headrace.spark.pipeline.runner import check_checkpoint  # noqa: E402
from headrace.spark.pipeline.sinks import ENDS, RunContext, open_lake_table, table_owner  # noqa: E402

SCHEMA = pa.schema([("id", pa.int64())])


class Stage:
    """A checkpoint as Spark leaves it, beside a sink that has its batches."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.folder, self.checkpoint = folder, folder / "checkpoint"
        self.query = uuid4().hex
        self.place = RunContext(bootstrap, str(self.checkpoint))
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": self.query}))

    def pipeline(self, kind: SinkKind, *, dead_letters: str | None = None) -> Pipeline:
        target = f"out-{self.query[:8]}" if kind is SinkKind.TOPIC else str(self.folder / "table")
        source = Source(name="orders", topics=("orders",))
        return Pipeline(
            name="totals", sources=(source,), sink=Sink(kind=kind, target=target), dead_letters=dead_letters
        )

    def plan(self, number: int, end: int) -> None:
        lines = ("v1", "{}", json.dumps({"orders": {"0": end}}))
        (self.checkpoint / "offsets" / str(number)).write_text("\n".join(lines))

    def forget(self, number: int) -> None:
        (self.checkpoint / "offsets" / str(number)).unlink()

    def decide(self, number: int) -> None:
        ends = batch_ends(str(self.checkpoint), number)
        client = ClientConfig(bootstrap=self.place.bootstrap)
        ExactlyOnceCommitter(cluster_for(client), self.query).commit(Decision(number, "cafe0123", (), ends))

    def add_to_table(self, pipeline: Pipeline, number: int) -> None:
        table: LakeTable = open_lake_table(pipeline, SCHEMA)
        notes = {ENDS: batch_ends(str(self.checkpoint), number)}
        assert commit_once(table, [], Batch(table_owner(pipeline, self.place), number, notes))


@pytest.fixture
def stage(kafka_broker, tmp_path: Path) -> Iterator[Stage]:
    yield Stage(kafka_broker.bootstrap, tmp_path)
    close_clusters()


def commit(stage: Stage, pipeline: Pipeline, number: int) -> None:
    if pipeline.sink.kind is SinkKind.TOPIC or pipeline.dead_letters:
        stage.decide(number)
    if pipeline.sink.kind in (SinkKind.DELTA, SinkKind.ICEBERG):
        stage.add_to_table(pipeline, number)
    if pipeline.sink.kind is SinkKind.PARQUET:
        written = Path(pipeline.sink.target) / "_spark_metadata"
        written.mkdir(parents=True, exist_ok=True)
        (written / str(number)).touch()


@pytest.mark.parametrize("kind", [SinkKind.TOPIC, SinkKind.DELTA, SinkKind.ICEBERG, SinkKind.PARQUET])
def test_checkpoint_older_than_sink_is_refused(stage: Stage, kind: SinkKind) -> None:
    pipeline = stage.pipeline(kind)
    check_checkpoint(pipeline, stage.place)
    for number in range(3):
        stage.plan(number, 100 * number + 100)
        check_checkpoint(pipeline, stage.place)
        commit(stage, pipeline, number)
        check_checkpoint(pipeline, stage.place)
    stage.forget(2)
    with pytest.raises(CheckpointMismatch, match=r"has batch 2 of this query.*the checkpoint ends with batch 1 up to"):
        check_checkpoint(pipeline, stage.place)
    stage.plan(2, 300)
    check_checkpoint(pipeline, stage.place)


@pytest.mark.parametrize("kind", [SinkKind.TOPIC, SinkKind.DELTA, SinkKind.ICEBERG])
def test_same_batch_number_with_other_offsets_is_refused(stage: Stage, kind: SinkKind) -> None:
    pipeline = stage.pipeline(kind)
    stage.plan(0, 100)
    commit(stage, pipeline, 0)
    stage.plan(0, 250)
    with pytest.raises(
        CheckpointMismatch, match=r'up to \[\{"orders":\{"0":100\}\}\]; the checkpoint plans batch 0 up to'
    ):
        check_checkpoint(pipeline, stage.place)


def test_dead_letters_ahead_of_restored_checkpoint_are_refused(stage: Stage) -> None:
    pipeline = stage.pipeline(SinkKind.DELTA, dead_letters="dead")
    stage.plan(0, 100)
    stage.plan(1, 200)
    stage.decide(1)  # killed between the letters and the table's commit
    check_checkpoint(pipeline, stage.place)
    stage.forget(1)
    with pytest.raises(CheckpointMismatch, match="the topic dead has batch 1"):
        check_checkpoint(pipeline, stage.place)


def test_refusal_of_dead_letters_names_the_tables_end(stage: Stage) -> None:
    """Letters are committed before rows: a new checkpoint that begins where the letters end loses the batch's rows."""
    pipeline = stage.pipeline(SinkKind.DELTA, dead_letters="dead")
    for number in range(2):
        stage.plan(number, 100 * number + 100)
    stage.add_to_table(pipeline, 0)
    stage.decide(1)
    stage.forget(1)
    with pytest.raises(
        CheckpointMismatch, match=r'batch 1 of this query up to .*:200.*to the offsets \[\{"orders":\{"0":100\}\}\]'
    ):
        check_checkpoint(pipeline, stage.place)


def test_refusal_completes_the_batch_that_was_decided(stage: Stage) -> None:
    """Its driver was killed before it ended the tasks' transactions. They would time out while the operator looks for
    the newer checkpoint, and a new one begins behind the batch."""
    pipeline = stage.pipeline(SinkKind.TOPIC)
    options = write_options({"kafka.bootstrap.servers": stage.place.bootstrap, "topic": pipeline.sink.target})
    cluster = cluster_for(options.client)
    create_topic_if_missing(cluster, pipeline.sink.target)
    for number in range(2):
        stage.plan(number, 100 * number + 100)
    rows = pa.record_batch({"value": pa.array([b"row"], pa.binary())})
    owner, _ = write_in_transaction(options, [rows], task_id(stage.query, "cafe0123", 1, "0-0"))
    assert owner is not None

    class Killed(ExactlyOnceCommitter):
        def _end(self, decision: Decision) -> None:
            raise KeyboardInterrupt

    ends = batch_ends(str(stage.checkpoint), 1)
    with pytest.raises(KeyboardInterrupt):
        Killed(cluster, stage.query).commit(Decision(1, "cafe0123", (owner,), ends))
    stage.forget(1)
    with pytest.raises(CheckpointMismatch, match="has batch 1"):
        check_checkpoint(pipeline, stage.place)
    assert [record.value for _, record in read_committed_records(cluster, pipeline.sink.target)] == [b"row"]


def test_checkpoint_that_is_not_here_is_left_to_the_sink(stage: Stage) -> None:
    """Spark runs on another machine, or the pipeline starts for the first time."""
    elsewhere = RunContext(stage.place.bootstrap, str(stage.folder / "elsewhere"))
    check_checkpoint(stage.pipeline(SinkKind.TOPIC), elsewhere)
