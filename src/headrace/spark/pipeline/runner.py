"""Runs the queries of a pipeline: first the backfill, if any, then the stream, until a stop request. Checks first that
the checkpoint matches the sink.

After a checkpoint was restored from a backup, Spark plans batches again that the sink has. The sink rejects such a
batch too, but a failed query is retried, while a pipeline that is rejected here reports the remedy once.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client.reader.arrow_reader import cluster_for
from headrace.client.reader.offsets import Json
from headrace.pipeline.definition import Pipeline, SinkKind, Source
from headrace.pipeline.state import PipelineState
from headrace.spark.connector.checkpoint import (
    UNKNOWN,
    CheckpointMismatch,
    CommittedBatch,
    batch_ends,
    check_newest,
    newest_number,
)
from headrace.spark.connector.exactly_once import NO_BATCH, CommitFailed, ExactlyOnceCommitter
from headrace.spark.connector.write_options import write_options
from headrace.spark.pipeline.check import mistakes_refused
from headrace.spark.pipeline.progress_reporter import ProgressReporter
from headrace.spark.pipeline.query import open_table, plan
from headrace.spark.pipeline.retry_topic import as_first_read, pin_retries
from headrace.spark.pipeline.sinks import RunContext, committed_in, start_queries, table_owner
from headrace.spark.pipeline.start_offsets import (
    finish_backfill,
    fix_start_offsets,
    from_offsets,
    has_begun,
    source_options,
    unfinished_backfill,
    until_offsets,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from headrace.lake.table import LakeTable


def check_checkpoint(pipeline: Pipeline, place: RunContext) -> None:
    """Raises CheckpointMismatch if the sink has committed a batch of this query that the checkpoint has not planned."""
    newest = newest_number(Path(place.checkpoint) / "offsets")
    if newest is None or not (Path(place.checkpoint) / "metadata").exists():
        return  # the query has not begun, or Spark runs on another host
    try:
        _check(pipeline, place, newest)
    except CheckpointMismatch:
        # A committed batch is completed first. Its transactions would time out while an operator looks for the right
        # checkpoint.
        decider = _decider(pipeline, place)
        if decider is None:
            raise
        with suppress(CommitFailed):
            decider.finish()
        _check(pipeline, place, newest)


def _check(pipeline: Pipeline, place: RunContext, newest: int) -> None:
    ends = batch_ends(place.checkpoint, newest)
    table = _of_table(pipeline, place)
    if table is not None:
        check_newest(pipeline.sink.target, table, newest, ends)
    for sink, committed in _committed(pipeline, place):
        try:
            check_newest(sink, committed, newest, ends)
        except CheckpointMismatch as mismatch:
            raise mismatch if table is None else mismatch.beginning_at(table) from None


def _decider(pipeline: Pipeline, place: RunContext) -> ExactlyOnceCommitter | None:
    """Returns the committer of the query that writes to topics; None if it writes only to a table, or through Spark's
    own sinks.
    """
    is_table = pipeline.sink.kind in (SinkKind.DELTA, SinkKind.ICEBERG)
    if pipeline.sink.kind is not SinkKind.TOPIC and not (is_table and pipeline.dead_letters):
        return None
    own = pipeline.sink.options if pipeline.sink.kind is SinkKind.TOPIC else {}
    options = write_options({**place.writing(), **own})
    return ExactlyOnceCommitter(cluster_for(options.client), place.query_id(), options.fence)


def _of_table(pipeline: Pipeline, place: RunContext) -> CommittedBatch | None:
    """Returns the last batch that a Delta or Iceberg sink has committed; None for other sinks."""
    if pipeline.sink.kind not in (SinkKind.DELTA, SinkKind.ICEBERG):
        return None
    table = _table(pipeline)
    return CommittedBatch(NO_BATCH, UNKNOWN) if table is None else committed_in(table, table_owner(pipeline, place))


def _committed(pipeline: Pipeline, place: RunContext) -> Iterator[tuple[str, CommittedBatch]]:
    """Yields the last batch that topics and Parquet directories have committed."""
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

        from headrace.lake.delta import DeltaLakeTable

        is_there = DeltaLakeTable.exists(pipeline.sink.target)
        return DeltaLakeTable(DeltaTable(pipeline.sink.target)) if is_there else None
    from headrace.lake.iceberg import IcebergLakeTable

    return IcebergLakeTable.open(pipeline.sink.target) if IcebergLakeTable.exists(pipeline.sink.target) else None


log = logging.getLogger(__name__)

# Frequent enough for a live status display, at negligible cost.
LOOK_S = 0.5
# Interval at which a fenced instance detects that it is fenced. It cannot commit anything in that time.
FENCE_LOOK_S = 5.0
# Spark's fixed limit of ten seconds for starting the Python process of a streaming source is too short on a busy host.
# Nothing has been read at that point, and restarting this process would take longer than a retry.
SOURCE_TOO_SLOW = "failed to connect back"
STARTS_MAX = 5

Options = dict[str, str]


def open_stream(spark: "SparkSession", source: Source, options: Options, checkpoint: str) -> "DataFrame":
    if not source.is_stream:
        return open_table(spark, source, checkpoint)
    return spark.readStream.format("headrace").options(**options).load()


class Running:
    def __init__(
        self, pipeline: Pipeline, state: PipelineState, place: RunContext, check_fence: Callable[[], None]
    ) -> None:
        self._pipeline, self._state, self._place = pipeline, state, place
        self._check_fence = check_fence
        self._stop = threading.Event()
        self._teller = ProgressReporter(state, place.client())
        self._starts: dict[str, Json] = {}
        self._retries: Json = {}

    def ask_to_stop(self, *_: object) -> None:
        self._stop.set()

    @property
    def is_asked_to_stop(self) -> bool:
        return self._stop.is_set()

    def run(self, spark: "SparkSession", *, only_backfill: bool = False) -> None:
        check_checkpoint(self._pipeline, self._place)
        cluster = cluster_for(self._place.client())
        self._retries = pin_retries(self._state, self._pipeline, cluster, has_begun=has_begun(self._state))
        starts = self._starts = fix_start_offsets(self._state, self._pipeline, self._place.bootstrap)
        until = unfinished_backfill(self._state)
        try:
            if until is not None:
                self._run_backfill(spark, starts, until)
            if not only_backfill and not self._stop.is_set():
                self._run(spark, self._pipeline, lambda source: self._from(source, starts))
        finally:
            self._teller.close()

    def _from(self, source: Source, starts: dict[str, Json]) -> Options:
        return from_offsets(self._options(source), starts.get(source.name, {}))

    def _options(self, source: Source) -> Options:
        # A backfill beside the stream has a group of its own.
        own = {"commitGroup": f"headrace-pipeline-{self._state.name}"}
        return {**source_options(self._pipeline, self._place.bootstrap, source), **own, **source.options}

    def _opened(self, source: Source, raw: "DataFrame") -> "DataFrame":
        if not source.is_stream:
            return raw
        return as_first_read(self._pipeline, source, raw, self._starts.get(source.name, {}), self._retries)

    def _run_backfill(self, spark: "SparkSession", starts: dict[str, Json], until: dict[str, Json]) -> None:
        log.info("history first, up to %s", until)
        bounded = replace(self._pipeline, trigger="available-now")
        self._run(spark, bounded, lambda source: until_offsets(self._from(source, starts), until[source.name]))
        if not self._stop.is_set():
            finish_backfill(self._state)

    def _run(self, spark: "SparkSession", pipeline: Pipeline, options: Callable[[Source], Options]) -> None:
        for attempt in range(1, STARTS_MAX + 1):
            try:
                self._run_once(spark, pipeline, options)
            except Exception as error:
                if attempt == STARTS_MAX or SOURCE_TOO_SLOW not in str(error):
                    raise
                log.warning("the host is too busy for Spark to start the source in time; retrying")
            else:
                return

    def _run_once(self, spark: "SparkSession", pipeline: Pipeline, options: Callable[[Source], Options]) -> None:
        with mistakes_refused(pipeline):
            planned = plan(
                spark,
                pipeline,
                lambda source: self._opened(
                    source,
                    open_stream(spark, source, options(source) if source.is_stream else {}, self._place.checkpoint),
                ),
            )
            queries = start_queries(pipeline, planned, self._place)
        self._teller.begin(pipeline.stalled_after_ms)
        log.info("pipeline %s runs as query %s", self._state.name, queries[0].id)
        try:
            self._watch(queries)
        finally:
            for query in queries:
                self._drain(query)
            self._teller.tell(queries)
        for query in queries:
            failure = query.exception()
            if failure is not None:
                raise failure

    def _watch(self, queries: list["StreamingQuery"]) -> None:
        looked = time.monotonic()
        parent = os.getppid()
        while all(query.isActive for query in queries) and not self._stop.is_set():
            # Returns early if the query ends. Accepts fractions, although its type does not.
            queries[0].awaitTermination(LOOK_S)  # type: ignore[arg-type]
            self._teller.tell(queries)
            if os.getppid() != parent:  # the supervisor has ended, so no process can stop this one any more
                self._stop.set()
            if time.monotonic() - looked > FENCE_LOOK_S:
                self._check_fence()
                looked = time.monotonic()
        if not self._stop.is_set() and all(query.exception() is None for query in queries):
            for query in queries:  # with available-now all queries end by themselves
                query.awaitTermination()

    def _drain(self, query: "StreamingQuery") -> None:
        """Stops a query after its current batch, so that the next start has nothing to repeat."""
        while query.isActive and query.status.get("isTriggerActive"):
            time.sleep(LOOK_S / 5)
        query.stop()
