"""Streaming reads that start in a topic's archive: the table provides offsets that the topic no longer has.

A batch is an offset range per partition, fixed before it is read. Table and topic have the same committed records at
the same offsets, so the source of a range may be chosen again whenever the batch is planned, including repetitions:
no record is missing or duplicated, wherever the topic's log start is by then.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet as pq

from headrace.archive.settings import read_settings
from headrace.archive.table import View, open_table
from headrace.client.reader.arrow_reader import ROWS_PER_BATCH
from headrace.client.reader.offset_resolver import OffsetResolver
from headrace.client.reader.offsets import OffsetRange, Positions
from headrace.client.reader.read_options import Subscription
from headrace.client.sync.client import Cluster
from headrace.lake.parquet import open_folder
from headrace.model.ids import TopicPartition


class Edges(NamedTuple):
    """Value ranges of a row group according to the file's footer, both ends inclusive."""

    partitions: tuple[int, int]
    offsets: tuple[int, int]

    def may_hold(self, wanted: OffsetRange) -> bool:
        first, last = self.partitions
        return (
            first <= wanted.partition.partition <= last
            and self.offsets[0] < wanted.end
            and self.offsets[1] >= wanted.start
        )


class ArchivedRowGroups(NamedTuple):
    """Row groups of an archived file, and the offset ranges to read from them. Picklable."""

    path: str
    row_groups: tuple[int, ...]
    ranges: tuple[OffsetRange, ...]  # of one topic


class ArchiveOffsetResolver(OffsetResolver):
    """Resolves offsets of topics with archives: a topic begins where its archive does."""

    def __init__(self, cluster: Cluster, subscription: Subscription) -> None:
        super().__init__(cluster, subscription, read_committed=True)
        self._edges: dict[str, list[Edges]] = {}  # by file path; archived files never change

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        firsts = super().earliest(partitions)
        views = self._views(firsts)
        return {
            one: min(first, views[one.topic].coverage.starts.get(one.partition, first)) if one.topic in views else first
            for one, first in firsts.items()
        }

    def split(self, ranges: Sequence[OffsetRange]) -> tuple[list[ArchivedRowGroups], list[OffsetRange]]:
        """Splits ranges into those to read from tables and those to read from topics.

        Where a range begins before its topic, the table provides as much of the range as it covers, because retention
        may be removing records.
        """
        firsts = super().earliest(one.partition for one in ranges)
        views = self._views(one.partition for one in ranges if one.start < firsts[one.partition])
        below: dict[str, list[OffsetRange]] = {}
        above: list[OffsetRange] = []
        for one in ranges:
            early = one.start < firsts[one.partition] and one.partition.topic in views
            ends = views[one.partition.topic].coverage.ends if early else {}
            # Offsets between the archive's end and the log start are lost. The reader of the topic detects that.
            cut = max(one.start, min(ends.get(one.partition.partition, one.start), one.end))
            if cut > one.start:
                below.setdefault(one.partition.topic, []).append(one._replace(end=cut))
            if cut < one.end:
                above.append(one._replace(start=cut))
        return [piece for topic, wanted in below.items() for piece in self._pieces(views[topic], wanted)], above

    def _pieces(self, view: View, wanted: list[OffsetRange]) -> Iterator[ArchivedRowGroups]:
        for path in view.files:
            if path not in self._edges:
                self._edges[path] = _edges_in(path)
            groups = self._edges[path]
            ranges = tuple(one for one in wanted if any(edges.may_hold(one) for edges in groups))
            chosen = (at for at, edges in enumerate(groups) if any(edges.may_hold(one) for one in ranges))
            if ranges:
                yield ArchivedRowGroups(path, tuple(chosen), ranges)

    def _views(self, partitions: Iterable[TopicPartition]) -> Mapping[str, View]:
        """Returns the current archives of those topics that have one."""
        found: dict[str, View] = {}
        for name in sorted({one.topic for one in partitions}):
            topic = self._cluster.patiently("finding the topic", partial(self._cluster.topic, name))
            settings = read_settings(self._cluster, topic) if topic is not None else None
            table = open_table(settings, create=False) if settings is not None else None
            if table is not None:
                found[name] = table.view()
        return found


def _edges_in(path: str) -> list[Edges]:
    filesystem, place = open_folder(path)
    with pq.ParquetFile(place, filesystem=filesystem) as file:
        footer = file.metadata
        groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
        return [Edges(_span(group, "partition"), _span(group, "offset")) for group in groups]


def _span(group: Any, name: str) -> tuple[int, int]:
    """Returns minimum and maximum. Without statistics the row group may contain any value."""
    columns = (group.column(at) for at in range(group.num_columns))
    statistics = next(column.statistics for column in columns if column.path_in_schema == name)
    if statistics is None or not statistics.has_min_max:
        return 0, 2**63 - 1
    return statistics.min, statistics.max


def read_piece(piece: ArchivedRowGroups, schema: pa.Schema) -> Iterator[Any]:
    """Yields the rows of the ranges as record batches of this schema."""
    filesystem, place = open_folder(piece.path)
    columns = list(dict.fromkeys([*schema.names, "partition", "offset"]))
    with pq.ParquetFile(place, filesystem=filesystem) as file:
        for batch in file.iter_batches(ROWS_PER_BATCH, row_groups=list(piece.row_groups), columns=columns):
            rows = batch.filter(reduce(pc.or_, (_within(batch, one) for one in piece.ranges)))
            if rows.num_rows:
                arrays = [rows.column(field.name).cast(field.type) for field in schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _within(batch: pa.RecordBatch, wanted: OffsetRange) -> Any:
    of_partition = pc.equal(batch.column("partition"), wanted.partition.partition)
    offsets = batch.column("offset")
    inside = pc.and_(pc.greater_equal(offsets, wanted.start), pc.less(offsets, wanted.end))
    return pc.and_(of_partition, inside)
