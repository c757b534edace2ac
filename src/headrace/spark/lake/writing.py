"""Rows of a DataFrame as Parquet files in a table's folder, not yet part of the table."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs
from pyarrow import parquet as pq

from headrace.spark.lake.table import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# As Spark and Hive name the folder of rows whose partition column is null.
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def arrow_schema(rows: "DataFrame") -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(rows.schema, timezone="UTC")


def write_files(rows: "DataFrame", folder: str, partition_by: Sequence[str] = ()) -> list[DataFile]:
    """Spark writes, in parallel; files that no commit names afterwards are rubbish that a vacuum finds."""
    writer = rows.write.mode("overwrite").option("compression", "zstd")
    (writer.partitionBy(*partition_by) if partition_by else writer).parquet(folder)
    return list(_written(folder))


def _written(folder: str) -> Iterator[DataFile]:
    filesystem, root = fs.FileSystem.from_uri(folder if "://" in folder else f"file://{folder}")
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True)):
        if info.type != fs.FileType.File or not info.base_name.endswith(".parquet"):
            continue
        count = pq.read_metadata(info.path, filesystem=filesystem).num_rows
        if count:
            yield DataFile(info.path, info.size, count, dict(_partition_of(info.path.removeprefix(root))))


def _partition_of(path: str) -> Iterator[tuple[str, str | None]]:
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            yield unquote(name), None if value == _NULL_PARTITION else unquote(value)
