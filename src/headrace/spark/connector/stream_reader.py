"""Streaming reads of the data source: topics of a subscription, and the offset range of each micro-batch.

Before every batch the reader checks the topics for new partitions, new topics, deletion and re-creation under the
same name. Where offsets that the query has not read are gone, it raises DataLossError, or continues if failOnDataLoss
is false.

One reader lives in the driver for as long as the query runs. Spark requests the latest offset before every batch and
plans [start, end) from what it has written to the checkpoint. Those offsets therefore contain everything that a
replay needs (see client/reader/offsets.py), and all state of the reader may be lost at any time.
"""

import logging
import time
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.client.core.errors import KafkaApiError
from headrace.client.librdkafka import BrokerUnreachable
from headrace.client.reader import arrow_reader
from headrace.client.reader.arrow_reader import DataLossError, cluster_for
from headrace.client.reader.offset_resolver import OffsetResolver, TopicNotFoundError
from headrace.client.reader.offsets import (
    MARKER,
    Json,
    OffsetRange,
    Positions,
    encode,
    ends_of,
    ids_of,
    is_marker,
    limited,
    plain,
    ranges_between,
    starts_in,
    tasks,
)
from headrace.client.reader.read_options import ReadOptions
from headrace.client.sync.client import RetryPolicy, TopicView
from headrace.client.sync.offsets import Committed, commit_offsets
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition
from headrace.spark.connector.reader import RangePartition, read_plan, rows_of

# Named topics are looked up for every batch, so that a re-created topic is never mistaken for the old one. A pattern
# needs the list of all topics and accepts one of this age.
REFRESH_S = 1.0


class View(NamedTuple):
    """Start offsets of the next batch, and the offsets up to which it can read."""

    starts: Positions
    ends: Positions
    ids: dict[str, str]


class TopicWatch:
    def __init__(self, locator: OffsetResolver, options: ReadOptions) -> None:
        self._locator = locator
        self._options = options
        self._topics: dict[str, TopicView] = {}
        self._looked_at = float("-inf")

    def look(self, start: Json) -> View:
        """Returns the range of the next batch. `start` contains the end offsets of the last batch; empty before the
        first one.
        """
        try:
            return self._look(start)
        except TopicNotFoundError:
            # A topic was deleted after the topics were listed: list them again first.
            self._looked_at = float("-inf")
            return self._look(start)

    def _look(self, start: Json) -> View:
        self._refresh()
        self._wait_for({one.topic for one in ends_of(start)})
        ids = {name: str(topic.topic_id) for name, topic in self._topics.items()}
        if not start:
            partitions = self._locator.partitions(self._topics)
            ends = self._locator.latest(partitions)
            # A start after the end is a typing error, or belongs to a topic that was re-created since the start was
            # set.
            starts = self._without_regress(self._locator.resolve(self._options.start, partitions), ends)
            return View(starts, {one: max(end, starts[one]) for one, end in ends.items()}, ids)
        known = self._without_lost_topics(ends_of(start), ids_of(start), ids)
        partitions = self._locator.partitions(self._topics, all_named=self._options.fail_on_data_loss)
        ends = self._locator.latest(partitions)
        starts = {one: position for one, position in known.items() if one in ends}
        starts |= self._locator.earliest([one for one in partitions if one not in starts])
        starts = self._without_regress(starts, ends)
        return View(starts, {one: max(end, starts[one]) for one, end in ends.items()}, ids)

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._options.subscription.pattern is None or now - self._looked_at >= REFRESH_S:
            self._topics = self._locator.topics()
            self._looked_at = now

    def _wait_for(self, names: Set[str]) -> None:
        """Waits for topics that a broker with outdated metadata does not list. A topic taken for deleted by mistake
        would be read again from its beginning.
        """
        missing = RetryPolicy(arrow_reader.MISSING_PATIENCE_S)
        while names - self._topics.keys():
            try:
                missing.wait_after(KafkaApiError(ErrorCode.LEADER_NOT_AVAILABLE, "no such topic"), "listing topics")
            except BrokerUnreachable:
                return
            self._locator.forget()
            self._topics = self._locator.topics()

    def _without_lost_topics(self, known: Positions, old_ids: dict[str, str], ids: dict[str, str]) -> Positions:
        for name in sorted({one.topic for one in known}):
            if name not in ids:
                self._lost(f"the topic {name} was deleted")
            elif old_ids.get(name, ids[name]) != ids[name]:
                self._lost(f"the topic {name} was deleted and re-created")
            else:
                continue
            known = {one: position for one, position in known.items() if one.topic != name}
        return known

    def _without_regress(self, starts: Positions, ends: Positions) -> Positions:
        """Handles positions beyond the log end. If the log was truncated, raises DataLossError, or continues at the log
        start if failOnDataLoss is false. If the leader has the position, it has not committed the records before it
        yet, and there is nothing new to read.
        """
        beyond: list[TopicPartition] = [
            one for one, position in starts.items() if position > ends[one] and not self._locator.holds(one, position)
        ]
        for one in beyond:
            self._lost(f"{one} ends at {ends[one]}, before the query's position {starts[one]}")
        return {**starts, **self._locator.earliest(beyond)}

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{what}: what the query had not read of it is lost. Set failOnDataLoss to false to continue with what "
                "is there now, or start the query with a new checkpoint."
            )


log = logging.getLogger(__name__)


class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._plan = read_plan(options, schema)
        self._locator = self._locator_for(options)
        self._watch = TopicWatch(self._locator, options)
        # End of the query, if any: untilOffsets, or with Trigger.AvailableNow the ends at its start.
        self._target: Positions | None = dict(options.until.offsets) if options.until else None
        self._latest: Positions = {}
        self._last_batch_at = float("-inf")  # the first batch never waits, as in the connector
        self._in_group: Positions = {}

    def _locator_for(self, options: ReadOptions) -> OffsetResolver:
        return OffsetResolver(cluster_for(options.client), options.subscription, read_committed=options.read_committed)

    # Spark's interface, in the order of its calls

    def initialOffset(self) -> Json:
        """Returns a marker instead of offsets: Spark calls this again when it repeats the first batch, and the start
        must not change in between.
        """
        return dict(MARKER)

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self._options.max_offsets_per_trigger
        return ReadMaxRows(rows_max) if rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        ends = self._locator.latest(self._locator.partitions(self._locator.topics()))
        until = ends if self._target is None else self._target
        self._target = {one: min(end, until.get(one, 0)) for one, end in ends.items()}

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Returns the end of the next batch; `start` itself if there is nothing to read."""
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

    # Batch sizes

    def _up_to_target(self, ends: Positions, starts: Positions) -> Positions:
        if self._target is None:
            return ends
        # A partition created after the query started has no target: the next run reads it.
        return {one: max(min(end, self._target.get(one, 0)), starts[one]) for one, end in ends.items()}

    def _waits_for_more(self, starts: Positions, ends: Positions) -> bool:
        rows_min = self._options.min_offsets_per_trigger
        if rows_min is None or self._target is not None:
            return False
        waiting = sum(ends[one] - starts[one] for one in ends)
        delayed_s = time.monotonic() - self._last_batch_at
        return waiting < rows_min and delayed_s < self._options.max_trigger_delay_s

    # Committed offsets

    def _show_in_group(self, offset: Json) -> None:
        """Commits this offset to the group, so that tools can show the query's lag.

        The checkpoint alone determines where the query continues, so a failed commit is logged and does not stop the
        query.
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
