"""Transfers rows of a query to the client in bounded memory.

Spark's own conversion to Arrow collects the whole result in the JVM and again in Python. Here each task writes its
rows to a file in the server's directory, or returns them inline if they are few, and the server sends them in task
order.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from headrace.model.errors import InvalidConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

DIRECTORY = "results"
# What a task returns without a file. Results of thousands of tasks stay far below Spark's limit for a job (1 GiB).
INLINE_BYTES = 64 * 1024
_WRITTEN = "task int, rows bigint, path string, inline binary"
# Types without a common representation in Arrow, JSON and Parquet. They are converted to Spark's text.
_AS_TEXT = ("daytimeinterval", "yearmonthinterval", "interval", "variant", "void", "time")


@dataclass(frozen=True, slots=True)
class Piece:
    rows: int
    path: str | None
    inline: bytes | None


@dataclass(frozen=True, slots=True)
class Result:
    schema: pa.Schema
    pieces: Sequence[Piece]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    def batches(self, rows_max: int | None) -> Iterator[pa.RecordBatch]:
        left = self.rows if rows_max is None else rows_max
        for piece in self.pieces:
            with pa.OSFile(piece.path) if piece.path else pa.BufferReader(piece.inline) as source:
                for batch in pa.ipc.open_stream(source):
                    if left <= 0:
                        return
                    yield self._named(batch.slice(0, left))
                    left -= batch.num_rows

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [column.cast(field.type) for column, field in zip(batch.columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def check_names(schema: "StructType") -> None:
    """Rejects duplicate column names, which JSON objects and Parquet files cannot have."""
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise InvalidConfig(f"the result has two columns named {name}; rename one of them with `as`")
        seen.add(name)
    for field in schema:
        for struct in _structs(field.dataType):
            check_names(struct)


def _structs(kind: "DataType") -> "Iterator[StructType]":
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        yield kind
    elif isinstance(kind, ArrayType):
        yield from _structs(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _structs(kind.keyType)
        yield from _structs(kind.valueType)


@contextmanager
def result_of(rows: "DataFrame", directory: Path) -> Iterator[Result]:
    """Runs the query. The files exist for the duration of the context."""
    from pyspark.sql.pandas.types import to_arrow_schema

    place = directory / DIRECTORY / uuid4().hex
    place.mkdir(parents=True)
    try:
        names = rows.columns
        shown = _shown(rows)
        plain = to_arrow_schema(shown.schema, timezone="UTC")
        schema = pa.schema([field.with_name(name) for field, name in zip(plain, names, strict=True)])
        yield Result(schema, _run(shown, str(place)))
    finally:
        rmtree(place, ignore_errors=True)


def _shown(rows: "DataFrame") -> "DataFrame":
    """Renames the columns: names may occur twice, and Spark interprets a dot in one as a field access."""
    from pyspark.sql import functions as f

    rows = rows.toDF(*(f"c{number}" for number, _ in enumerate(rows.columns)))
    kinds = {field.name: (field.dataType, _shown_type(field.dataType)) for field in rows.schema}
    return rows.select(
        *(f.col(name) if kind == shown else f.col(name).cast(shown) for name, (kind, shown) in kinds.items())
    )


def _shown_type(kind: "DataType") -> "DataType":
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType

    if isinstance(kind, ArrayType):
        return ArrayType(_shown_type(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_shown_type(kind.keyType), _shown_type(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        return StructType([StructField(one.name, _shown_type(one.dataType), one.nullable) for one in kind])
    return StringType() if kind.typeName().split("(")[0] in _AS_TEXT else kind


def _run(rows: "DataFrame", place: str) -> list[Piece]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _written(batches, place)

    found = sorted(rows.mapInArrow(write, _WRITTEN).collect(), key=lambda one: int(one.task))
    return [Piece(one.rows, one.path, None if one.inline is None else bytes(one.inline)) for one in found]


def _written(batches: Iterator[pa.RecordBatch], place: str) -> Iterator[pa.RecordBatch]:
    """In a task: writes its rows as one Arrow stream, inline if it is small."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "only tasks have rows"
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.nbytes for one in held) > INLINE_BYTES:
            path = f"{place}/{uuid4().hex}.arrows"
            with pa.OSFile(path, "wb") as sink:
                count = _stream(sink, held, batches)
            yield _row(context.partitionId(), count, path, None)
            return
    if held:
        sink = pa.BufferOutputStream()
        count = _stream(sink, held, iter(()))
        yield _row(context.partitionId(), count, None, sink.getvalue().to_pybytes())


def _stream(sink: Any, held: Sequence[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> int:
    with pa.ipc.new_stream(sink, held[0].schema) as writer:
        count = 0
        for batch in chain(held, rest):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _row(task: int, rows: int, path: str | None, inline: bytes | None) -> pa.RecordBatch:
    types = (pa.int32(), pa.int64(), pa.string(), pa.binary())
    names = ("task", "rows", "path", "inline")
    return pa.RecordBatch.from_arrays(
        [pa.array([value], kind) for value, kind in zip((task, rows, path, inline), types, strict=True)], names=[*names]
    )
