"""`option("history", "true")`: batch and streaming reads of a topic with its archive, each row once."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from headrace.archive.history import ArchivedFile, cut, read_file
from headrace.archive.stream_history import ArchivedRowGroups, ArchiveOffsetResolver, read_piece
from headrace.client.reader.arrow_reader import cluster_for
from headrace.client.reader.offset_resolver import OffsetResolver
from headrace.client.reader.offsets import OffsetRange
from headrace.client.reader.read_options import ReadOptions
from headrace.spark.connector.reader import HeadraceBatchReader
from headrace.spark.connector.stream_reader import HeadraceStreamReader


class FilePartition(InputPartition):
    def __init__(self, file: ArchivedFile) -> None:
        super().__init__(None)
        self.file = file


class HeadraceHistoryReader(HeadraceBatchReader):
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        cluster = cluster_for(options.client)
        locator = OffsetResolver(cluster, options.subscription, read_committed=True)
        topics = locator.topics()
        wanted = self._narrowing.partitions(locator.partitions(topics))
        found = cut(cluster, locator, topics, wanted, fail_on_data_loss=options.fail_on_data_loss)
        return [*map(FilePartition, found.files), *self._pieces(locator, found.starts, found.ends)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, FilePartition):
            return read_file(partition.file, self._plan.schema)
        return super().read(partition)


class PiecePartition(InputPartition):
    def __init__(self, piece: ArchivedRowGroups) -> None:
        super().__init__(None)
        self.piece = piece


class HeadraceHistoryStreamReader(HeadraceStreamReader):
    """Starts in the archive, and continues in the topic at the first offset that the topic still has."""

    _locator: ArchiveOffsetResolver

    def _locator_for(self, options: ReadOptions) -> ArchiveOffsetResolver:
        return ArchiveOffsetResolver(cluster_for(options.client), options.subscription)

    def _tasks(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        archived, in_topic = self._locator.split(ranges)
        return [*map(PiecePartition, archived), *super()._tasks(in_topic)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, PiecePartition):
            return read_piece(partition.piece, self._plan.schema)
        return super().read(partition)
