"""The queries of one pipeline while they run: history first if there is any, then the stream, until asked to stop."""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.spark.pipeline.beginning import (
    finish_backfill,
    from_offsets,
    has_begun,
    pin_starts,
    source_options,
    unfinished_backfill,
    until_offsets,
)
from headrace.spark.pipeline.checking import mistakes_refused
from headrace.spark.pipeline.plan import open_table, plan
from headrace.spark.pipeline.restored import check_checkpoint
from headrace.spark.pipeline.retried import as_first_read, pin_retries
from headrace.spark.pipeline.sinks import Place, start_queries
from headrace.spark.pipeline.spec import Pipeline, Source
from headrace.spark.pipeline.state import PipelineState
from headrace.spark.pipeline.telling import Teller
from headrace.spark.positions import Json
from headrace.spark.reading import cluster_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

# Often enough that a status looks alive, seldom enough to cost nothing.
LOOK_S = 0.5
# How long a copy that was left behind goes on reading before it notices. It cannot commit anything in that time.
FENCE_LOOK_S = 5.0
# Spark gives the Python process of a streaming source ten seconds to start, which it cannot be told to change, and on a
# busy machine that is too short. Nothing has been read then, and a new process of ours would take longer still.
SOURCE_TOO_SLOW = "failed to connect back"
STARTS_MAX = 5

Options = dict[str, str]


def open_stream(spark: "SparkSession", source: Source, options: Options, checkpoint: str) -> "DataFrame":
    if not source.is_stream:
        return open_table(spark, source, checkpoint)
    return spark.readStream.format("headrace").options(**options).load()


class Running:
    def __init__(self, pipeline: Pipeline, state: PipelineState, place: Place, check_fence: Callable[[], None]) -> None:
        self._pipeline, self._state, self._place = pipeline, state, place
        self._check_fence = check_fence
        self._stop = threading.Event()
        self._teller = Teller(state, place.client())
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
        starts = self._starts = pin_starts(self._state, self._pipeline, self._place.bootstrap)
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
        own = {"commitGroup": f"headrace-pipeline-{self._state.name}"}  # a backfill beside the stream has its own
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
            # Back at once when there is nothing left to read. It takes fractions; its type does not say so.
            queries[0].awaitTermination(LOOK_S)  # type: ignore[arg-type]
            self._teller.tell(queries)
            if os.getppid() != parent:  # whoever supervised is gone, and nobody can stop this one any more
                self._stop.set()
            if time.monotonic() - looked > FENCE_LOOK_S:
                self._check_fence()
                looked = time.monotonic()
        if not self._stop.is_set() and all(query.exception() is None for query in queries):
            for query in queries:  # one of them has read what there was; so will the other
                query.awaitTermination()

    def _drain(self, query: "StreamingQuery") -> None:
        """A batch under way is finished: what it has read is written, and the next start has nothing to repeat."""
        while query.isActive and query.status.get("isTriggerActive"):
            time.sleep(LOOK_S / 5)
        query.stop()
