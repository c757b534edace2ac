"""`format("headrace-table")`: reads a Delta or Iceberg table by its own log, in a version that is fixed per
micro-batch.

Spark plans the static side of a stream once for all micro-batches. The tasks of a stream therefore look up the
version themselves. A query that is not a stream is planned with the files of one version.

    checkpoint/tables/<hash of the table's path>/<batch>.<n>      {"run", "version"}

The first task of a batch that reads the table pins the newest version in such a file, and the other tasks read it:
a file is created by one task and never changed. A batch that is repeated in a later run of the query reads the
same version, or the newest as entry n + 1 if a vacuum has removed it. Within a run a version that disappears fails
the batch, because some of its rows may have been read already.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.lake.table_version import LakeVersion, Part, UnreadableTable, all_there, open_version, packed
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


log = logging.getLogger(__name__)

PINS = "tables"
# Spark repeats only the last batch. Older entries show an operator what earlier batches read.
BATCHES_KEPT = 100


class Pin(NamedTuple):
    run: str
    version: str


def pinned(place: str, checkpoint: Path, batch: int, run: str) -> LakeVersion:
    directory = checkpoint / PINS / sha256(place.encode()).hexdigest()[:16]
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        number, known = _newest(directory, batch)
        if known is not None and known.run == run:
            return open_version(place, known.version)
        version = (_still_there(place, known.version) if known is not None else None) or open_version(place)
        if _written(directory / f"{batch}.{number + 1}", Pin(run, version.version)):
            _forget_old(directory, batch)
            return version


def _newest(directory: Path, batch: int) -> tuple[int, Pin | None]:
    numbers = [int(file.suffix[1:]) for file in directory.glob(f"{batch}.*")]
    if not numbers:
        return -1, None
    return max(numbers), Pin(**json.loads((directory / f"{batch}.{max(numbers)}").read_text(encoding="utf-8")))


def _written(file: Path, pin: Pin) -> bool:
    """Creates the file atomically: a link appears with its content. Returns False if another task was first."""
    unfinished = file.parent / f"unfinished-{uuid4().hex}"
    unfinished.write_text(json.dumps(pin._asdict()), encoding="utf-8")
    try:
        os.link(unfinished, file)
    except FileExistsError:
        return False
    finally:
        unfinished.unlink()
    return True


def _still_there(place: str, version: str) -> LakeVersion | None:
    try:
        found = open_version(place, version)
        is_there = all_there(found.parts())
    except Exception as error:  # delta-rs and PyIceberg raise many exceptions for a missing version
        if isinstance(error, HeadraceError) and error.retriable:
            raise
        log.warning("%s has no version %s any more: %s", place, version, error)
        return None
    return found if is_there else None


def _forget_old(directory: Path, batch: int) -> None:
    for file in directory.glob("*.*"):
        if file.stem.isdecimal() and int(file.stem) < batch - BATCHES_KEPT:
            file.unlink(missing_ok=True)


FORMAT = "headrace-table"


def open_lake_frame(spark: "SparkSession", place: str, checkpoint: str | None = None) -> "DataFrame":
    """Returns the table as a DataFrame. `checkpoint` is that of the stream that is joined with the table, if any."""
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
    """The part of one task: every `of`th group of files of the version that the micro-batch reads."""

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
