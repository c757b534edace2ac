"""Streaming reads: what each micro-batch covers. One object lives in the driver for as long as the query runs.

Spark asks for the latest offset before every batch and plans [start, end) from what it has written down, so everything
that a replay needs stands in those offsets (see positions.py); what is kept here may be lost at any time.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.client.blocking.offsets import Committed, commit_offsets
from headrace.spark.batch_reader import RangePartition, read_plan, rows_of
from headrace.spark.locating import Locator
from headrace.spark.options import ReadOptions
from headrace.spark.planning import OffsetRange, limited, ranges_between, tasks
from headrace.spark.positions import MARKER, Json, Positions, encode, ends_of, ids_of, is_marker, plain, starts_in
from headrace.spark.reading import cluster_for
from headrace.spark.watching import TopicWatch

log = logging.getLogger(__name__)


class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._plan = read_plan(options, schema)
        self._locator = self._locator_for(options)
        self._watch = TopicWatch(self._locator, options)
        # Where the query ends, if it does: at untilOffsets, or with Trigger.AvailableNow at what is there now.
        self._target: Positions | None = dict(options.until.offsets) if options.until else None
        self._latest: Positions = {}
        self._last_batch_at = float("-inf")  # the first batch waits for nothing, as in the connector
        self._in_group: Positions = {}

    def _locator_for(self, options: ReadOptions) -> Locator:
        return Locator(cluster_for(options.client), options.subscription, read_committed=options.read_committed)

    # What Spark calls, in its order

    def initialOffset(self) -> Json:
        """A marker: Spark asks again whenever the first batch is repeated, and the answer must not have moved."""
        return dict(MARKER)

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self._options.max_offsets_per_trigger
        return ReadMaxRows(rows_max) if rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        ends = self._locator.latest(self._locator.partitions(self._locator.topics()))
        until = ends if self._target is None else self._target
        self._target = {one: min(end, until.get(one, 0)) for one, end in ends.items()}

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """The end of the next batch; `start` itself when there is nothing to do."""
        self._show_in_group(start)
        view = self._watch.look({} if is_marker(start) else start)
        self._latest = view.ends
        ends = self._up_to_target(view.ends, view.starts)
        if self._waits_for_more(view.starts, ends):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = limited(view.starts, ends, limit.max_rows)
        known = ends_of(start)
        if not is_marker(start) and ends == known and view.ids == ids_of(start):
            return start
        self._last_batch_at = time.monotonic()
        fresh = {one: position for one, position in view.starts.items() if known.get(one) != position}
        return encode(ends, view.ids, fresh)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        starts = {**ends_of(start), **starts_in(end)}
        return self._tasks(ranges_between(starts, ends_of(end)))

    def _tasks(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        options = self._options
        shared = tasks(ranges, parts_min=options.min_partitions, rows_max=options.max_records_per_partition)
        return [RangePartition(one) for one in shared]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_of(self._plan, partition)

    def commit(self, end: Json) -> None:
        self._show_in_group(end)

    def reportLatestOffset(self) -> Json | None:
        return plain(self._latest) if self._latest else None

    # How much

    def _up_to_target(self, ends: Positions, starts: Positions) -> Positions:
        if self._target is None:
            return ends
        # A partition that came after the query began has no target: it waits for the next run.
        return {one: max(min(end, self._target.get(one, 0)), starts[one]) for one, end in ends.items()}

    def _waits_for_more(self, starts: Positions, ends: Positions) -> bool:
        rows_min = self._options.min_offsets_per_trigger
        if rows_min is None or self._target is not None:
            return False
        waiting = sum(ends[one] - starts[one] for one in ends)
        delayed_s = time.monotonic() - self._last_batch_at
        return waiting < rows_min and delayed_s < self._options.max_trigger_delay_s

    # The group

    def _show_in_group(self, offset: Json) -> None:
        """Everything before this offset is done: tell the group, so that tools see the query's lag.

        A courtesy to onlookers: the checkpoint is what counts, so a failure is no reason to stop the query.
        """
        group = self._options.commit_group
        positions = {} if is_marker(offset) else ends_of(offset)
        if group is None or not positions or positions == self._in_group:
            return
        cluster = cluster_for(self._options.client)
        try:
            commit_offsets(cluster, group, {one: Committed(position) for one, position in positions.items()})
        except Exception as error:
            cluster.forget()
            log.warning("could not show the query's positions in the group %s: %s", group, error)
        else:
            self._in_group = positions
