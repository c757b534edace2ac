"""Sinks of a pipeline and its dead-letter topic. Start the queries that `query.py` has built; all sinks except the
console write exactly once.

    topic             rows and dead-letter records are one write of one query: both are committed, or neither
    delta, iceberg    one query; a batch's dead-letter records are committed before its rows, each under the query's
                      id and the batch's number, and Spark repeats the batch until both are committed
    parquet, console  Spark's own sinks accept rows only, so dead-letter records are a second query with its own
                      checkpoint

For tables a `foreachBatch` writes: tasks leave their transactions open, and this process commits. A write of the
format headrace would do the same, but Spark starts four Python processes to plan one, which takes longer than a small
batch.
"""

import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headrace.client.reader.arrow_reader import cluster_for
from headrace.client.sync.client import ClientConfig
from headrace.client.sync.transactions import ProducerIdentity
from headrace.model.errors import InvalidConfig
from headrace.pipeline.definition import Pipeline, SinkKind
from headrace.pipeline.kafka_access import security_of
from headrace.pipeline.progress import DEAD_COUNT, OUTPUT_COUNT
from headrace.spark.connector.checkpoint import UNKNOWN, CheckpointMismatch, CommittedBatch, batch_ends, check_repeated
from headrace.spark.connector.sink import TaskResult, decide, write_once
from headrace.spark.connector.write_options import WriteOptions, fence_text, write_options
from headrace.spark.pipeline.ownership import check_owner
from headrace.spark.pipeline.query import PipelineQuery, records
from headrace.spark.pipeline.sink_columns import check_columns, without_false_nulls

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from headrace.lake.table import LakeTable


def write_letters(letters: "DataFrame", options: WriteOptions, query_id: str, run_id: str, number: int) -> None:
    """Writes the dead-letter records and the commit record of this batch. Returns after both are committed."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        done = write_once(options, batches, query_id, run_id, number)
        yield pa.RecordBatch.from_pydict({"done": [pickle.dumps(done)]})

    rows = letters.mapInArrow(write, "done binary").collect()
    done: list[TaskResult] = [pickle.loads(row.done) for row in rows]
    decide(options, done, number)


AVAILABLE_NOW = ("once", "available-now")
ENDS = "ends"  # key in the notes of a table's commit: end offsets of the batch
_ROW, _LETTER = "_headrace_row", "_headrace_letter"


@dataclass(frozen=True, slots=True)
class RunContext:
    """Environment of a pipeline run: cluster, checkpoint, and the right to commit its batches. Picklable."""

    bootstrap: str
    checkpoint: str
    fence: ProducerIdentity | None = None
    security: Mapping[str, str] = field(default_factory=dict)  # options with the client's credentials
    run_id: str = field(default_factory=lambda: uuid4().hex)  # identifies this start; part of its transactional ids

    def writing(self) -> dict[str, str]:
        """Returns options of the format headrace for all writes of this pipeline."""
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            "deliveryGuarantee": "exactly-once",
            "includeHeaders": "true",
            **self.security,
        }
        return options | ({"producerFence": fence_text(self.fence)} if self.fence is not None else {})

    def client(self) -> ClientConfig:
        return ClientConfig(bootstrap=self.bootstrap, security=security_of(self.security))

    def query_id(self) -> str:
        """Returns the query id in the checkpoint's metadata. A new checkpoint has a new id, and its batch numbers
        restart at 0.
        """
        text = (Path(self.checkpoint) / "metadata").read_text(encoding="utf-8")
        return str(json.loads(text)["id"])


def start_queries(pipeline: Pipeline, planned: PipelineQuery, place: RunContext) -> list["StreamingQuery"]:
    """Starts the pipeline's query and, with one of Spark's own sinks, a second one for its dead-letter records."""
    check_target(pipeline, place)
    check_columns(pipeline, planned.output.schema)
    queries = [_start(pipeline, _writer(pipeline, planned, place), pipeline.name, place.checkpoint)]
    if planned.dead is not None and pipeline.sink.kind in (SinkKind.PARQUET, SinkKind.CONSOLE):
        letters = counted(planned.dead, DEAD_COUNT).writeStream.format("headrace").options(**place.writing())
        name, checkpoint = f"{pipeline.name}-dead-letters", f"{place.checkpoint}-dead-letters"
        try:
            queries.append(_start(pipeline, letters, name, checkpoint))
        except BaseException:
            queries[0].stop()  # a server's session outlives this process, and the query would run unsupervised
            raise
    return queries


def check_target(pipeline: Pipeline, place: RunContext) -> None:
    """Rejects a Parquet directory with batches of another checkpoint. Spark's file sink would skip the batches of a new
    checkpoint silently, because it has their numbers already.
    """
    log = Path(pipeline.sink.target) / "_spark_metadata"
    if pipeline.sink.kind is SinkKind.PARQUET and log.is_dir() and not (Path(place.checkpoint) / "metadata").exists():
        raise InvalidConfig(
            f"{pipeline.sink.target} was written by an earlier run whose checkpoint is missing: its batches would be "
            "taken for those of this run. Use another directory, or remove this one"
        )


def _start(pipeline: Pipeline, writer: "DataStreamWriter", name: str, checkpoint: str) -> "StreamingQuery":
    writer = writer.queryName(name).option("checkpointLocation", checkpoint)
    return _triggered(pipeline, writer).outputMode(pipeline.output_mode).start()


def _triggered(pipeline: Pipeline, writer: "DataStreamWriter") -> "DataStreamWriter":
    if pipeline.trigger in AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=pipeline.trigger)


def _writer(pipeline: Pipeline, planned: PipelineQuery, place: RunContext) -> "DataStreamWriter":
    match pipeline.sink.kind:
        case SinkKind.TOPIC:
            return _to_topic(pipeline, planned, place)
        case SinkKind.CONSOLE:
            output = counted(planned.output, OUTPUT_COUNT)
            return output.writeStream.format("console").option("truncate", "false").options(**pipeline.sink.options)
        case SinkKind.PARQUET:
            rows = without_false_nulls(planned.output, pipeline.sink.partition_by)
            output = counted(rows, OUTPUT_COUNT)
            writer = output.writeStream.format("parquet").option("path", pipeline.sink.target)
            return writer.partitionBy(*pipeline.sink.partition_by) if pipeline.sink.partition_by else writer
        case SinkKind.DELTA | SinkKind.ICEBERG:
            return _to_table(pipeline, planned, place)


def counted(rows: "DataFrame", name: str) -> "DataFrame":
    """Adds the number of rows to the query's progress under this name, without a second pass."""
    from pyspark.sql import functions as f

    return rows.observe(name, f.count(f.lit(1)).alias("count"))


def _to_topic(pipeline: Pipeline, planned: PipelineQuery, place: RunContext) -> "DataStreamWriter":
    rows = counted(records(pipeline, planned.output), OUTPUT_COUNT)
    if planned.dead is not None:
        rows = rows.unionByName(counted(planned.dead, DEAD_COUNT))
    return rows.writeStream.format("headrace").options(**place.writing()).options(**pipeline.sink.options)


def _to_table(pipeline: Pipeline, planned: PipelineQuery, place: RunContext) -> "DataStreamWriter":
    output = counted(planned.output, OUTPUT_COUNT)
    if planned.dead is None:
        return output.writeStream.foreachBatch(lambda rows, number: _add_to_table(pipeline, place, rows, number))
    both = _together(output, counted(planned.dead, DEAD_COUNT))
    return both.writeStream.foreachBatch(lambda rows, number: _add_both(pipeline, place, rows, number))


def _together(output: "DataFrame", dead: "DataFrame") -> "DataFrame":
    """Returns rows and dead-letter records as one frame, in which each line is one or the other."""
    from pyspark.sql import functions as f

    def only(frame: "DataFrame", column: str) -> "DataFrame":
        return frame.select(f.struct(*(f.col(f"`{name}`") for name in frame.columns)).alias(column))

    return only(output, _ROW).unionByName(only(dead, _LETTER), allowMissingColumns=True)


def _add_both(pipeline: Pipeline, place: RunContext, both: "DataFrame", number: int) -> None:
    from pyspark.sql import functions as f

    both.persist()  # read and decoded once, although it is written twice
    try:
        letters = both.where(f.col(_LETTER).isNotNull()).select(f"{_LETTER}.*")
        options = write_options({**place.writing(), "checkpointLocation": place.checkpoint})
        try:
            write_letters(letters, options, place.query_id(), place.run_id, number)
        except CheckpointMismatch as mismatch:
            raise mismatch.beginning_at(_committed_batch(pipeline, place, both)) from None
        rows = _rows_of(both)
        _add_to_table(pipeline, place, rows, number)
    finally:
        both.unpersist()


def _rows_of(both: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    return both.where(f.col(_ROW).isNotNull()).select(f"{_ROW}.*")


def _committed_batch(pipeline: Pipeline, place: RunContext, both: "DataFrame") -> CommittedBatch:
    from headrace.spark.pipeline.lake_writer import arrow_schema

    table = open_lake_table(pipeline, arrow_schema(_rows_of(both)))
    return committed_in(table, table_owner(pipeline, place))


def _add_to_table(pipeline: Pipeline, place: RunContext, rows: "DataFrame", number: int) -> None:
    """Adds a micro-batch to a table: writes the files, then commits files and batch number together."""
    from headrace.lake.table import Batch, commit_once
    from headrace.spark.pipeline.lake_writer import arrow_schema, write_files

    table = open_lake_table(pipeline, arrow_schema(rows))
    owner = table_owner(pipeline, place)
    ends = batch_ends(place.checkpoint, number)
    if table.last_batch(owner) >= number:
        check_repeated(pipeline.sink.target, committed_in(table, owner), number, ends)
        return
    folder = f"{table.location.removeprefix('file://')}/data/{pipeline.name}-{number}-{uuid4().hex}"
    files = write_files(rows, folder, table.layout(arrow_schema(rows)))
    # An instance that is fenced right after this check is stopped by the table's log, which accepts a batch once.
    if place.fence is not None:
        check_owner(cluster_for(place.client()), place.fence)
    if not commit_once(table, files, Batch(owner, number, {ENDS: ends})):
        check_repeated(pipeline.sink.target, committed_in(table, owner), number, ends)


def table_owner(pipeline: Pipeline, place: RunContext) -> str:
    """Returns the owner name under which a table stores the last batch of this query."""
    return f"{pipeline.group}-{place.query_id()}"


def committed_in(table: "LakeTable", owner: str) -> CommittedBatch:
    return CommittedBatch(table.last_batch(owner), table.notes(owner).get(ENDS, UNKNOWN))


def open_lake_table(pipeline: Pipeline, schema: "pa.Schema") -> "LakeTable":
    from headrace.lake.table import check_partitioning, evolve_schema_once

    table: LakeTable
    if pipeline.sink.kind is SinkKind.DELTA:
        from headrace.lake.delta import DeltaLakeTable

        table = DeltaLakeTable.open_or_create(pipeline.sink.target, schema, pipeline.sink.partition_by)
    else:
        from headrace.lake.iceberg import IcebergLakeTable

        table = IcebergLakeTable.open_or_create(pipeline.sink.target, schema, pipeline.sink.partition_by)
    check_partitioning(table, pipeline.sink.partition_by)
    evolve_schema_once(table, schema)
    return table
