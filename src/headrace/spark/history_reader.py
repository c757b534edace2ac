"""`option("history", "true")`: a batch read of a topic and its archive, each row once."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from headrace.spark.archive.history import ArchivedFile, cut, read_file
from headrace.spark.batch_reader import HeadraceBatchReader
from headrace.spark.locating import Locator
from headrace.spark.reading import cluster_for


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
