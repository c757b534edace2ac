"""Batch reads of the data source, and pushed-down filters.

The offset range is fixed when the query is planned, and split into tasks. Pushed-down filters exclude partitions and
narrow the offset range. Spark evaluates every filter again, so a filter that is not understood costs time and never
rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.reader.arrow_reader import ReadSpec, cluster_for, read_range, until_gone
from headrace.client.reader.offset_resolver import OffsetResolver
from headrace.client.reader.offsets import OffsetRange, Positions, ranges_between, tasks
from headrace.client.reader.read_options import ReadOptions
from headrace.model.errors import InvalidConfig
from headrace.model.ids import TopicPartition


class PushedFilters:
    def __init__(self) -> None:
        self._choices: list[tuple[str, frozenset[Any]]] = []
        self._first = 0
        self._end: int | None = None
        self._from_ms: int | None = None

    def take(self, filters: Iterable[Filter]) -> None:
        for one in filters:
            column = getattr(one, "attribute", ())
            if column in (("topic",), ("partition",)):
                self._take_choice(one, column[0])
            elif column == ("offset",):
                self._take_offset(one)
            elif column == ("timestamp",):
                self._take_time(one)

    def _take_choice(self, one: Any, column: str) -> None:
        if isinstance(one, EqualTo):
            self._choices.append((column, frozenset({one.value})))
        elif isinstance(one, In):
            self._choices.append((column, frozenset(one.value)))

    def _take_offset(self, one: Any) -> None:
        if isinstance(one, (EqualTo, GreaterThanOrEqual)):
            self._first = max(self._first, one.value)
        elif isinstance(one, GreaterThan):
            self._first = max(self._first, one.value + 1)
        if isinstance(one, (EqualTo, LessThanOrEqual)):
            self._end = min(one.value + 1, self._end if self._end is not None else one.value + 1)
        elif isinstance(one, LessThan):
            self._end = min(one.value, self._end if self._end is not None else one.value)

    def _take_time(self, one: Any) -> None:
        """Narrows the start only. All records before the first one with this timestamp or a later one are older, while
        records after it may have any timestamp.
        """
        if isinstance(one, (EqualTo, GreaterThan, GreaterThanOrEqual)) and isinstance(one.value, datetime):
            from_ms = int(one.value.timestamp() * 1000)
            self._from_ms = max(self._from_ms or 0, from_ms)

    def partitions(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [one for one in partitions if all(getattr(one, column) in chosen for column, chosen in self._choices)]

    def offsets(self, locator: OffsetResolver, starts: Positions, ends: Positions) -> tuple[Positions, Positions]:
        starts = {one: max(start, self._first) for one, start in starts.items()}
        if self._end is not None:
            ends = {one: min(end, self._end) for one, end in ends.items()}
        if self._from_ms is not None and self._from_ms > 0:
            found: Mapping[TopicPartition, int | None] = locator.at(dict.fromkeys(starts, self._from_ms))
            starts = {one: max(start, _or_end(found[one], ends[one])) for one, start in starts.items()}
        return starts, ends


def _or_end(offset: int | None, end: int) -> int:
    return end if offset is None else offset


class RangePartition(InputPartition):
    """Offset ranges of one task. Spark pickles it to the executor."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def read_plan(options: ReadOptions, schema: StructType) -> ReadSpec:
    return ReadSpec(
        options.client,
        options.read_committed,
        options.fail_on_data_loss,
        options.fetch_bytes,
        to_arrow_schema(schema, timezone="UTC"),
    )


def rows_of(plan: ReadSpec, partition: InputPartition) -> Iterator[Any]:
    # Spark substitutes an empty partition if a reader has none.
    ranges = partition.ranges if isinstance(partition, RangePartition) else ()
    return chain.from_iterable(until_gone(read_range(plan, one)) for one in ranges)


class HeadraceBatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._narrowing = PushedFilters()
        self._plan = read_plan(options, schema)
        if options.push_filters:
            # Only if enabled: Spark 4.3 keeps the narrowed plan with the DataFrame, and a later query on the same
            # DataFrame without filters would use it.
            self.pushFilters = _Push(self._narrowing)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        locator = OffsetResolver(
            cluster_for(options.client), options.subscription, read_committed=options.read_committed
        )
        # The options apply to all partitions, including filtered ones, so they are resolved and checked first.
        partitions = locator.partitions(locator.topics())
        starts = locator.resolve(options.start, partitions)
        ends = locator.resolve(options.end, partitions)
        self._check_ends(locator, ends)
        self._check_order(starts, ends)
        left = self._narrowing.partitions(partitions)
        return self._pieces(locator, {one: starts[one] for one in left}, {one: ends[one] for one in left})

    def _pieces(self, locator: OffsetResolver, starts: Positions, ends: Positions) -> list[InputPartition]:
        options = self._options
        starts, ends = self._narrowing.offsets(locator, starts, ends)
        ranges = ranges_between(starts, ends)
        shared = tasks(ranges, parts_min=options.min_partitions, rows_max=options.max_records_per_partition)
        return [RangePartition(one) for one in shared]

    def _check_ends(self, locator: OffsetResolver, ends: Positions) -> None:
        """Rejects end offsets beyond the log end. A batch read does not wait for records."""
        if not self._options.end.offsets:
            return
        latest = locator.latest(ends)
        beyond: list[TopicPartition] = [one for one in ends if ends[one] > latest[one]]
        if beyond:
            raise InvalidConfig(
                f"endingOffsets: {beyond[0]} ends at {latest[beyond[0]]}, not at {ends[beyond[0]]}; use -1 for its end"
            )

    @staticmethod
    def _check_order(starts: Positions, ends: Positions) -> None:
        """Rejects a start after the end: a typing error, or an offset of a topic that was deleted and re-created. It
        must not pass for an empty range.
        """
        for one in sorted(ends):
            if starts[one] > ends[one]:
                raise InvalidConfig(
                    f"startingOffsets: {one} starts at {starts[one]} and ends at {ends[one]}, before that; correct one "
                    "of the two, or check whether the topic was deleted and re-created"
                )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_of(self._plan, partition)


class _Push:
    """A reader's `pushFilters` as an attribute.

    Spark rejects a reader that overrides the method unless spark.sql.python.filterPushdown.enabled is set, and calls
    it only if it is set. A callable that appears to be the inherited method works in both cases.
    """

    def __init__(self, narrowing: PushedFilters) -> None:
        self._narrowing = narrowing
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Any]) -> list[Any]:
        self._narrowing.take(filters)
        return filters  # Spark evaluates all of them again, because fetches return whole batches
