"""Whether a pipeline's checkpoint is as new as what its sink holds, looked at before the query starts.

A checkpoint that was restored from a backup plans batches again that the sink has. The sink refuses such a batch as
well, but a query that fails is tried again; a pipeline that is refused here says once what to do.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.checkpoint import UNKNOWN, CommittedBatch, batch_ends, check_newest, newest_number
from headrace.spark.deciding import Decider
from headrace.spark.pipeline.sinks import Place, committed_in, table_owner
from headrace.spark.pipeline.spec import Pipeline, SinkKind
from headrace.spark.reading import cluster_for
from headrace.spark.sink_options import write_options

if TYPE_CHECKING:
    from headrace.spark.lake.table import LakeTable


def check_checkpoint(pipeline: Pipeline, place: Place) -> None:
    """CheckpointMismatch if the sink has a batch of this query that the checkpoint has not planned."""
    newest = newest_number(Path(place.checkpoint) / "offsets")
    if newest is None or not (Path(place.checkpoint) / "metadata").exists():
        return  # it has not begun, or Spark runs on another machine
    ends = batch_ends(place.checkpoint, newest)
    for sink, committed in _committed(pipeline, place):
        check_newest(sink, committed, newest, ends)


def _committed(pipeline: Pipeline, place: Place) -> Iterator[tuple[str, CommittedBatch]]:
    """The last batch that each part of the sink has."""
    is_table = pipeline.sink.kind in (SinkKind.DELTA, SinkKind.ICEBERG)
    if pipeline.sink.kind is SinkKind.TOPIC or (is_table and pipeline.dead_letters):
        own = pipeline.sink.options if pipeline.sink.kind is SinkKind.TOPIC else {}
        options = write_options({**place.writing(), **own})
        decision = Decider(cluster_for(options.client), place.query_id()).last(stable=True)
        if decision is not None:
            topic = pipeline.dead_letters if is_table else pipeline.sink.target
            yield f"the topic {topic}", CommittedBatch(decision.batch_id, decision.ends)
    table = _table(pipeline) if is_table else None
    if table is not None:
        yield pipeline.sink.target, committed_in(table, table_owner(pipeline, place))
    if pipeline.sink.kind is SinkKind.PARQUET:
        number = newest_number(Path(pipeline.sink.target) / "_spark_metadata")
        yield pipeline.sink.target, CommittedBatch(-1 if number is None else number, UNKNOWN)


def _table(pipeline: Pipeline) -> "LakeTable | None":
    if pipeline.sink.kind is SinkKind.DELTA:
        from deltalake import DeltaTable

        from headrace.spark.lake.delta import DeltaLakeTable

        is_there = DeltaLakeTable.exists(pipeline.sink.target)
        return DeltaLakeTable(DeltaTable(pipeline.sink.target)) if is_there else None
    from headrace.spark.lake.iceberg import IcebergLakeTable

    return IcebergLakeTable.open(pipeline.sink.target) if IcebergLakeTable.exists(pipeline.sink.target) else None
