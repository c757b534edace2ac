"""`format("headrace-table")`: a Delta or Iceberg table as its log says, in the version of the moment it is read.

Spark plans the static side of a stream once, for all its micro-batches. So the tasks of a stream look for the version
themselves (see `pins.py`), and a query that is no stream is planned with the files of one version.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.lake.reading import LakeVersion, Part, UnreadableTable, open_version, packed
from headrace.spark.pins import pinned

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "headrace-table"


def open_lake_frame(spark: "SparkSession", place: str, checkpoint: str | None = None) -> "DataFrame":
    """`checkpoint` is that of the stream which joins the table, if it is one."""
    spark.dataSource.register(TableSource)
    reader = spark.read.format(FORMAT).option("path", place)
    return (reader.option("checkpoint", checkpoint) if checkpoint is not None else reader).load()


class TableSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(open_version(self.options["path"]).schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(self.options["path"], self.options.get("checkpoint"), schema)


@dataclass
class FixedPart(InputPartition):
    parts: Sequence[Part]


@dataclass
class Share(InputPartition):
    """Every `of`th task's worth of whatever version the micro-batch reads."""

    number: int
    of: int


class TableReader(DataSourceReader):
    def __init__(self, place: str, checkpoint: str | None, schema: StructType) -> None:
        self._place, self._checkpoint, self._schema = place, checkpoint, schema

    def partitions(self) -> Sequence[InputPartition]:
        tasks = packed(self._parts_of(open_version(self._place))) or [[]]
        if self._checkpoint is None:
            return [FixedPart(parts) for parts in tasks]
        return [Share(number, len(tasks)) for number in range(len(tasks))]

    def _parts_of(self, version: LakeVersion) -> Sequence[Part]:
        gone = [name for name in self._schema.names if name not in version.schema.names]
        if gone:
            raise UnreadableTable(f"{self._place} has no column {gone[0]} any more; start the query again")
        return version.parts()

    def read(self, partition: Any) -> Iterator["pa.RecordBatch"]:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        for part in partition.parts if isinstance(partition, FixedPart) else self._shared(partition):
            yield from part.batches(schema)

    def _shared(self, share: Share) -> Iterator[Part]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "parts are read by tasks"
        assert self._checkpoint is not None, "shares are those of a stream"
        batch, run = context.getLocalProperty("streaming.sql.batchId"), context.getLocalProperty("spark.jobGroup.id")
        version = pinned(self._place, Path(self._checkpoint), int(batch or 0), run or "")
        for parts in packed(self._parts_of(version))[share.number :: share.of]:
            yield from parts
