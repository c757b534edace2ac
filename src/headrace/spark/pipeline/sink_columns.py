"""Checks whether a file sink can store a query's columns: types, names and partitioning.

Checked before a query is started, because Spark and the table formats detect some errors only at the first row, and
some never.
"""

from typing import TYPE_CHECKING

from headrace.model.errors import InvalidConfig
from headrace.pipeline.definition import Pipeline, SinkKind
from headrace.pipeline.errors import concerning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from headrace.lake.table import LakeTable

FILES = (SinkKind.DELTA, SinkKind.ICEBERG, SinkKind.PARQUET)
TABLES = (SinkKind.DELTA, SinkKind.ICEBERG)
# Spark's type names. Parquet supports some of the other types, tables support none.
_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "decimal")
STORED = frozenset(["boolean", *_NUMBERS, "string", "binary", "date", "timestamp", "timestamp_ntz"])
PARQUET_TOO = frozenset(["variant", "daytimeinterval", "yearmonthinterval"])
# A file holds the rows of one partition value. Equal floating-point numbers may differ (0.0 and -0.0), and NaN equals
# nothing.
PARTITIONED_BY = STORED - {"float", "double", "binary"}
# The second is the directory name of Spark and Hive for rows whose partition column is null.
_FALSE_NULLS = ("", "__HIVE_DEFAULT_PARTITION__")


def check_columns(pipeline: Pipeline, schema: "StructType") -> None:
    """Raises InvalidConfig for columns that the sink cannot store, or that would be read back changed."""
    if pipeline.sink.kind not in FILES:
        return
    _check_names([field.name for field in schema])
    for field in schema:
        for kind in _leaves(field.dataType):
            _check_type(pipeline.sink.kind, field.name, kind)
    with concerning("sink", "partition_by"):
        _check_partitions(pipeline.sink.kind, pipeline.sink.partition_by, schema)
    with concerning("sink", pipeline.sink.kind):
        _check_table(pipeline, schema)


def _check_names(names: "Sequence[str]", place: str = "the query") -> None:
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            raise InvalidConfig(
                f"{place} has two columns {seen[name.lower()]} and {name}, which readers cannot distinguish; rename "
                "one with `as`"
            )
        seen[name.lower()] = name


def _leaves(kind: "DataType") -> "Iterator[DataType]":
    """Yields the leaf types of a type. A struct without fields is a leaf."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        yield from _leaves(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _leaves(kind.keyType)
        yield from _leaves(kind.valueType)
    elif isinstance(kind, StructType) and kind.fields:
        _check_names(kind.names, f"{kind.simpleString()}")
        for field in kind:
            yield from _leaves(field.dataType)
    else:
        yield kind


def _name_of(kind: "DataType") -> str:
    name = kind.typeName()
    return "string" if name in ("char", "varchar") else name


def _check_type(sink: SinkKind, column: str, kind: "DataType") -> None:
    if _name_of(kind) in (STORED | PARQUET_TOO if sink is SinkKind.PARQUET else STORED):
        return
    raise InvalidConfig(
        f"column {column} is {kind.simpleString()}, which {sink} cannot store; cast it in the query, for example to"
        f" string"
    )


def _check_partitions(sink: SinkKind, partition_by: "Sequence[str]", schema: "StructType") -> None:
    for name in partition_by:
        if name not in schema.names:
            raise InvalidConfig(f"partition_by: there is no column {name}; the query has {', '.join(schema.names)}")
        kind = schema[name].dataType
        if _name_of(kind) not in PARTITIONED_BY:
            raise InvalidConfig(
                f"partition_by: {name} is {kind.simpleString()}, and {sink} is partitioned by whole numbers, decimals, "
                "strings, booleans, dates and timestamps"
            )
    if partition_by and sink is not SinkKind.ICEBERG and not set(schema.names) - set(partition_by):
        raise InvalidConfig(f"partition_by: {sink} needs a column that it is not partitioned by")
    if len(set(partition_by)) != len(partition_by):
        raise InvalidConfig("partition_by names a column twice")


def _check_table(pipeline: Pipeline, schema: "StructType") -> None:
    """Checks the columns against an existing table, whose types and partitioning cannot change."""
    if pipeline.sink.kind not in TABLES:
        return
    from pyspark.sql.pandas.types import to_arrow_schema

    from headrace.lake.table import check_partitioning

    table = existing_table(pipeline)
    if table is not None:
        check_partitioning(table, pipeline.sink.partition_by)
        table.new_columns(to_arrow_schema(schema, timezone="UTC"))


def existing_table(pipeline: Pipeline) -> "LakeTable | None":
    if pipeline.sink.kind is SinkKind.DELTA:
        from headrace.lake.delta import DeltaLakeTable

        return DeltaLakeTable.open(pipeline.sink.target) if DeltaLakeTable.exists(pipeline.sink.target) else None
    from headrace.lake.iceberg import IcebergLakeTable

    return IcebergLakeTable.open(pipeline.sink.target) if IcebergLakeTable.exists(pipeline.sink.target) else None


def without_false_nulls(rows: "DataFrame", partition_by: "Sequence[str]") -> "DataFrame":
    """Fails at strings that Spark's Parquet sink, or readers of its directories, would interpret as null."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    for name in partition_by:
        if isinstance(rows.schema[name].dataType, StringType):
            column = f.col(_quoted(name))
            complaint = (
                f"' cannot be the value of the partition column {name}: readers of Parquet directories take it for "
                "null. Replace it in the pipeline's SQL, or partition by another column"
            )
            stop = f.raise_error(f.concat(f.lit("'"), column, f.lit(complaint)))
            rows = rows.withColumn(name, f.when(column.isin(*_FALSE_NULLS), stop).otherwise(column))
    return rows


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
