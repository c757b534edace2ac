"""`option("history", "true")`: a topic and its archive as one, each row once, in a batch read or as a stream."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from headrace.spark.archive.history import ArchivedFile, cut, read_file
from headrace.spark.archive.stream_history import ArchivedPiece, HistoryLocator, read_piece
from headrace.spark.batch_reader import HeadraceBatchReader
from headrace.spark.locating import Locator
from headrace.spark.options import ReadOptions
from headrace.spark.planning import OffsetRange
from headrace.spark.reading import cluster_for
from headrace.spark.stream_reader import HeadraceStreamReader


class FilePartition(InputPartition):
    def __init__(self, file: ArchivedFile) -> None:
        super().__init__(None)
        self.file = file


class HeadraceHistoryReader(HeadraceBatchReader):
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        cluster = cluster_for(options.client)
        locator = Locator(cluster, options.subscription, read_committed=True)
        topics = locator.topics()
        wanted = self._narrowing.partitions(locator.partitions(topics))
        found = cut(cluster, locator, topics, wanted, fail_on_data_loss=options.fail_on_data_loss)
        return [*map(FilePartition, found.files), *self._pieces(locator, found.starts, found.ends)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, FilePartition):
            return read_file(partition.file, self._plan.schema)
        return super().read(partition)


class PiecePartition(InputPartition):
    def __init__(self, piece: ArchivedPiece) -> None:
        super().__init__(None)
        self.piece = piece


class HeadraceHistoryStreamReader(HeadraceStreamReader):
    """Begins in the archive, and reads the topic as soon as it holds what comes next."""

    _locator: HistoryLocator

    def _locator_for(self, options: ReadOptions) -> HistoryLocator:
        return HistoryLocator(cluster_for(options.client), options.subscription)

    def _tasks(self, ranges: Sequence[OffsetRange]) -> list[InputPartition]:
        archived, in_topic = self._locator.split(ranges)
        return [*map(PiecePartition, archived), *super()._tasks(in_topic)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, PiecePartition):
            return read_piece(partition.piece, self._plan.schema)
        return super().read(partition)
