"""A stream that begins in a topic's archive: offsets that the topic has no more come from the table, others from it.

A batch is a range of offsets of each partition, written down before it is read. Both places hold the same committed
records under the same offsets, so which of them a range is read from may be decided anew whenever the batch is planned,
also when it is repeated: nothing comes twice and nothing is missing, wherever the topic begins by then.
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
    """What a row group can hold, by its file's footer: both ends are in it."""

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
    """Row groups of an archived file, and what is wanted of them. Picklable."""

    path: str
    row_groups: tuple[int, ...]
    ranges: tuple[OffsetRange, ...]  # of one topic


class ArchiveOffsetResolver(OffsetResolver):
    """A topic begins where its archive does."""

    def __init__(self, cluster: Cluster, subscription: Subscription) -> None:
        super().__init__(cluster, subscription, read_committed=True)
        self._edges: dict[str, list[Edges]] = {}  # of files that were looked into; they never change

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        firsts = super().earliest(partitions)
        views = self._views(firsts)
        return {
            one: min(first, views[one.topic].coverage.starts.get(one.partition, first)) if one.topic in views else first
            for one, first in firsts.items()
        }

    def split(self, ranges: Sequence[OffsetRange]) -> tuple[list[ArchivedRowGroups], list[OffsetRange]]:
        """Which of it the tables have to give, and what the topics still have.

        Where a range begins before its topic, the table gives all it has of the range: retention may be at work.
        """
        firsts = super().earliest(one.partition for one in ranges)
        views = self._views(one.partition for one in ranges if one.start < firsts[one.partition])
        below: dict[str, list[OffsetRange]] = {}
        above: list[OffsetRange] = []
        for one in ranges:
            early = one.start < firsts[one.partition] and one.partition.topic in views
            ends = views[one.partition.topic].coverage.ends if early else {}
            # What lies between the archive's end and the topic's beginning is lost, which the topic's reader will find.
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
        """The archives of these topics as of this moment, of those that have one."""
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
    """Least and most; a file without statistics may hold anything."""
    columns = (group.column(at) for at in range(group.num_columns))
    statistics = next(column.statistics for column in columns if column.path_in_schema == name)
    if statistics is None or not statistics.has_min_max:
        return 0, 2**63 - 1
    return statistics.min, statistics.max


def read_piece(piece: ArchivedRowGroups, schema: pa.Schema) -> Iterator[Any]:
    """The rows of the ranges, as Spark wants them."""
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
