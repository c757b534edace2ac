"""Batch reads: the range is fixed while the query is planned, and cut into tasks."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.model.errors import InvalidConfig
from headrace.model.ids import TopicPartition
from headrace.spark.filters import Narrowing
from headrace.spark.locating import Locator
from headrace.spark.options import ReadOptions
from headrace.spark.planning import OffsetRange, ranges_between, tasks
from headrace.spark.positions import Positions
from headrace.spark.reading import ReadPlan, cluster_for, read_range, until_gone


class RangePartition(InputPartition):
    """One task's work. Spark pickles it to the executor."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges


def read_plan(options: ReadOptions, schema: StructType) -> ReadPlan:
    return ReadPlan(
        options.client,
        options.read_committed,
        options.fail_on_data_loss,
        options.fetch_bytes,
        to_arrow_schema(schema, timezone="UTC"),
    )


def rows_of(plan: ReadPlan, partition: InputPartition) -> Iterator[Any]:
    # Spark invents a partition without anything in it where a reader has none.
    ranges = partition.ranges if isinstance(partition, RangePartition) else ()
    return chain.from_iterable(until_gone(read_range(plan, one)) for one in ranges)


class HeadraceBatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._narrowing = Narrowing()
        self._plan = read_plan(options, schema)
        if options.push_filters:
            # Only for those who ask: Spark 4.3 keeps the narrowed plan with the DataFrame, and a later query on the
            # same DataFrame that pushes nothing down is given it too.
            self.pushFilters = _Push(self._narrowing)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        locator = Locator(cluster_for(options.client), options.subscription, read_committed=options.read_committed)
        # What the user wrote is about all partitions, whatever filters leave of them: it is resolved first.
        partitions = locator.partitions(locator.topics())
        starts = locator.resolve(options.start, partitions)
        ends = locator.resolve(options.end, partitions)
        self._check_ends(locator, ends)
        self._check_order(starts, ends)
        left = self._narrowing.partitions(partitions)
        return self._pieces(locator, {one: starts[one] for one in left}, {one: ends[one] for one in left})

    def _pieces(self, locator: Locator, starts: Positions, ends: Positions) -> list[InputPartition]:
        options = self._options
        starts, ends = self._narrowing.offsets(locator, starts, ends)
        ranges = ranges_between(starts, ends)
        shared = tasks(ranges, parts_min=options.min_partitions, rows_max=options.max_records_per_partition)
        return [RangePartition(one) for one in shared]

    def _check_ends(self, locator: Locator, ends: Positions) -> None:
        """An end that was written by hand may lie in the future; waiting for it is what streams are for."""
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
        """A start behind the end is a slip, or the offset of a topic that was made anew: not a read of nothing."""
        for one in sorted(ends):
            if starts[one] > ends[one]:
                raise InvalidConfig(
                    f"startingOffsets: {one} starts at {starts[one]} and ends at {ends[one]}, before that; correct one "
                    "of the two, or check whether the topic was deleted and re-created"
                )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_of(self._plan, partition)


class _Push:
    """`pushFilters` of a reader, as a value of its own.

    Spark refuses a reader that overrides the method unless spark.sql.python.filterPushdown.enabled is set, and calls it
    only if it is. A callable that presents itself as the inherited method works either way.
    """

    def __init__(self, narrowing: Narrowing) -> None:
        self._narrowing = narrowing
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Any]) -> list[Any]:
        self._narrowing.take(filters)
        return filters  # each is applied by Spark again: they narrow what is fetched, to whole batches
