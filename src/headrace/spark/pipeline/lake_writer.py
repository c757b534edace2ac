"""Writes rows of a DataFrame as Parquet files in a table's directory, before a commit adds them to the table.

Spark's tasks write the files from Arrow. Spark's own Parquet writer removes the partition columns from the files,
treats an empty string in them as null, and writes timestamps as INT96, which Iceberg does not have.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from headrace.lake.parquet import FileWriter
from headrace.lake.partition_values import from_text, runs, to_text
from headrace.lake.table import DataFile, Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITTEN = "path string, size bigint, rows bigint, partition string"


def arrow_schema(rows: "DataFrame") -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(rows.schema, timezone="UTC")


def write_files(rows: "DataFrame", directory: str, layout: Layout) -> list[DataFile]:
    """Writes the files in parallel. A vacuum removes files of failed tasks and files that no commit references."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return described(written(batches, directory, layout))

    names = [f"c{position}" for position, _ in enumerate(layout.schema)]
    rows = rows.toDF(*names)  # `mapInArrow` interprets a dot in a name as a field access
    if layout.partition_by:  # so that a task has one open file at a time, and as few files as values
        rows = rows.sortWithinPartitions(*(names[layout.schema.names.index(name)] for name in layout.partition_by))
    types = [layout.schema.field(name).type for name in layout.partition_by]
    return [
        DataFile(one.path, one.size, one.rows, _by_name(layout.partition_by, from_text(one.partition, types)))
        for one in rows.mapInArrow(write, _WRITTEN).collect()
    ]


def written(batches: Iterator[pa.RecordBatch], directory: str, layout: Layout) -> Iterator[DataFile]:
    """Yields one file per run of rows with equal partition values."""
    writer: FileWriter | None = None
    values: tuple[Any, ...] = ()
    for batch in batches:
        for key, same in runs(fitted(batch, layout.schema), layout.partition_by):
            if writer is None or key != values:
                if writer is not None:
                    yield _closed(writer, layout.partition_by, values)
                writer, values = FileWriter(f"{directory}/{uuid4().hex}.parquet", layout.file_schema), key
            writer.write(same.select(layout.file_schema.names).cast(layout.file_schema))
    if writer is not None:
        yield _closed(writer, layout.partition_by, values)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the columns, matched by position, in the table's types."""
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _closed(writer: FileWriter, columns: Sequence[str], values: Sequence[Any]) -> DataFile:
    return writer.close()._replace(partition=_by_name(columns, values))


def _by_name(columns: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(columns, values, strict=True))


def described(files: Iterator[DataFile]) -> Iterator[pa.RecordBatch]:
    for file in files:
        row = {
            "path": file.path,
            "size": file.size,
            "rows": file.rows,
            "partition": to_text([*file.partition.values()]),
        }
        yield pa.RecordBatch.from_pylist([row])
