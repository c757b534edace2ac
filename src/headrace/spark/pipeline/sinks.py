"""Where the rows go. Each sink starts the query that `plan.py` has built; all but the console write exactly once.

A topic takes rows and dead letters in one commit of the same writer. Beside a table, dead letters are a second query
with a checkpoint of its own: each of the two writes what belongs to it exactly once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from headrace.spark.pipeline.plan import Planned, records
from headrace.spark.pipeline.progress import DEAD_COUNT, OUTPUT_COUNT
from headrace.spark.pipeline.spec import Pipeline, SinkKind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from headrace.spark.lake.table import LakeTable


def start_queries(pipeline: Pipeline, planned: Planned, bootstrap: str, checkpoint: str) -> list["StreamingQuery"]:
    """The pipeline's query, and beside a table one for its dead letters."""
    queries = [_start(pipeline, _writer(pipeline, planned, bootstrap), pipeline.name, checkpoint)]
    if planned.dead is not None and pipeline.sink.kind is not SinkKind.TOPIC:
        letters = _to_headrace(counted(planned.dead, DEAD_COUNT), bootstrap)
        queries.append(_start(pipeline, letters, f"{pipeline.name}-dead-letters", f"{checkpoint}-dead-letters"))
    return queries


def _start(pipeline: Pipeline, writer: "DataStreamWriter", name: str, checkpoint: str) -> "StreamingQuery":
    writer = writer.queryName(name).option("checkpointLocation", checkpoint)
    return _triggered(pipeline, writer).outputMode(pipeline.output_mode).start()


def _triggered(pipeline: Pipeline, writer: "DataStreamWriter") -> "DataStreamWriter":
    if pipeline.trigger in ("once", "available-now"):
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=pipeline.trigger)


def _writer(pipeline: Pipeline, planned: Planned, bootstrap: str) -> "DataStreamWriter":
    match pipeline.sink.kind:
        case SinkKind.TOPIC:
            return _to_topic(pipeline, planned, bootstrap)
        case SinkKind.CONSOLE:
            output = counted(planned.output, OUTPUT_COUNT)
            return output.writeStream.format("console").option("truncate", "false").options(**pipeline.sink.options)
        case SinkKind.PARQUET:
            output = counted(planned.output, OUTPUT_COUNT)
            writer = output.writeStream.format("parquet").option("path", pipeline.sink.target)
            return writer.partitionBy(*pipeline.sink.partition_by) if pipeline.sink.partition_by else writer
        case SinkKind.DELTA | SinkKind.ICEBERG:
            output = counted(planned.output, OUTPUT_COUNT)
            return output.writeStream.foreachBatch(lake_batch(pipeline))


def counted(rows: "DataFrame", name: str) -> "DataFrame":
    """The count shows up in the query's progress under this name, at no extra pass."""
    from pyspark.sql import functions as f

    return rows.observe(name, f.count(f.lit(1)).alias("count"))


def _to_topic(pipeline: Pipeline, planned: Planned, bootstrap: str) -> "DataStreamWriter":
    rows = counted(records(pipeline, planned.output), OUTPUT_COUNT)
    if planned.dead is not None:
        rows = rows.unionByName(counted(planned.dead, DEAD_COUNT))
    return _to_headrace(rows, bootstrap).options(**pipeline.sink.options)


def _to_headrace(records: "DataFrame", bootstrap: str) -> "DataStreamWriter":
    options = {"kafka.bootstrap.servers": bootstrap, "deliveryGuarantee": "exactly-once", "includeHeaders": "true"}
    return records.writeStream.format("headrace").options(**options)


def lake_batch(pipeline: Pipeline) -> Callable[["DataFrame", int], None]:
    """What happens to a micro-batch of a table: files first, then one commit that names them and the batch."""

    def write(rows: "DataFrame", number: int) -> None:
        from headrace.spark.lake.table import Batch, commit_once
        from headrace.spark.lake.writing import arrow_schema, write_files

        table = open_lake_table(pipeline, arrow_schema(rows))
        if table.last_batch(pipeline.group) >= number:
            return
        folder = f"{table.location.removeprefix('file://')}/data/{pipeline.name}-{number}-{uuid4().hex}"
        files = write_files(rows, folder, pipeline.sink.partition_by)
        commit_once(table, files, Batch(pipeline.group, number))

    return write


def open_lake_table(pipeline: Pipeline, schema: "pa.Schema") -> "LakeTable":
    table: LakeTable
    if pipeline.sink.kind is SinkKind.DELTA:
        from headrace.spark.lake.delta import DeltaLakeTable

        table = DeltaLakeTable.open_or_create(pipeline.sink.target, schema, pipeline.sink.partition_by)
    else:
        from headrace.spark.lake.iceberg import IcebergLakeTable

        table = IcebergLakeTable.open_or_create(pipeline.sink.target, schema, pipeline.sink.partition_by)
    table.fit(schema)
    return table
