"""Whether a pipeline's checkpoint is as new as what its sink holds, looked at before the query starts.

A checkpoint that was restored from a backup plans batches again that the sink has. The sink refuses such a batch as
well, but a query that fails is tried again; a pipeline that is refused here says once what to do.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.checkpoint import (
    UNKNOWN,
    CheckpointMismatch,
    CommittedBatch,
    batch_ends,
    check_newest,
    newest_number,
)
from headrace.spark.deciding import NO_BATCH, CommitFailed, Decider
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
    try:
        _check(pipeline, place, newest)
    except CheckpointMismatch:
        # A batch that was decided counts, and would time out while somebody finds the right checkpoint.
        decider = _decider(pipeline, place)
        if decider is None:
            raise
        with suppress(CommitFailed):
            decider.finish()
        _check(pipeline, place, newest)


def _check(pipeline: Pipeline, place: Place, newest: int) -> None:
    ends = batch_ends(place.checkpoint, newest)
    table = _of_table(pipeline, place)
    if table is not None:
        check_newest(pipeline.sink.target, table, newest, ends)
    for sink, committed in _committed(pipeline, place):
        try:
            check_newest(sink, committed, newest, ends)
        except CheckpointMismatch as mismatch:
            raise mismatch if table is None else mismatch.beginning_at(table) from None


def _decider(pipeline: Pipeline, place: Place) -> Decider | None:
    """Of the query that writes to topics; None if it writes to a table alone, or Spark's own sink does."""
    is_table = pipeline.sink.kind in (SinkKind.DELTA, SinkKind.ICEBERG)
    if pipeline.sink.kind is not SinkKind.TOPIC and not (is_table and pipeline.dead_letters):
        return None
    own = pipeline.sink.options if pipeline.sink.kind is SinkKind.TOPIC else {}
    options = write_options({**place.writing(), **own})
    return Decider(cluster_for(options.client), place.query_id(), options.fence)


def _of_table(pipeline: Pipeline, place: Place) -> CommittedBatch | None:
    """The last batch that a Delta or Iceberg sink has; None of other sinks."""
    if pipeline.sink.kind not in (SinkKind.DELTA, SinkKind.ICEBERG):
        return None
    table = _table(pipeline)
    return CommittedBatch(NO_BATCH, UNKNOWN) if table is None else committed_in(table, table_owner(pipeline, place))


def _committed(pipeline: Pipeline, place: Place) -> Iterator[tuple[str, CommittedBatch]]:
    """The last batch that topics and directories of Parquet have."""
    decider = _decider(pipeline, place)
    decision = decider.last(stable=True) if decider is not None else None
    if decision is not None:
        topic = pipeline.sink.target if pipeline.sink.kind is SinkKind.TOPIC else pipeline.dead_letters
        yield f"the topic {topic}", decision.committed
    if pipeline.sink.kind is SinkKind.PARQUET:
        number = newest_number(Path(pipeline.sink.target) / "_spark_metadata")
        yield pipeline.sink.target, CommittedBatch(NO_BATCH if number is None else number, UNKNOWN)


def _table(pipeline: Pipeline) -> "LakeTable | None":
    if pipeline.sink.kind is SinkKind.DELTA:
        from deltalake import DeltaTable

        from headrace.spark.lake.delta import DeltaLakeTable

        is_there = DeltaLakeTable.exists(pipeline.sink.target)
        return DeltaLakeTable(DeltaTable(pipeline.sink.target)) if is_there else None
    from headrace.spark.lake.iceberg import IcebergLakeTable

    return IcebergLakeTable.open(pipeline.sink.target) if IcebergLakeTable.exists(pipeline.sink.target) else None
