"""Decoding in Python workers, a batch of records at a time: Arrow in, Arrow out.

A decoder turns one value into a dictionary or raises `DoesNotDecode`; this file gives it batches, turns its errors
into text beside the row, and builds the columns that Spark was promised.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.spark.pipeline.decoding import ERROR, ROW, VALUE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Decode = Callable[[bytes], dict[str, Any]]


class DoesNotDecode(Exception):
    """Why a value is not what its schema says."""


def with_decoded_row(renamed: "DataFrame", row_type: str, make_decoder: Callable[[], Decode]) -> "DataFrame":
    """`make_decoder` is called once in each worker: what it holds need not be pickled, only itself."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    row = StructField(ROW, StructType.fromDDL(row_type))
    schema = StructType([*renamed.schema.fields, row, StructField(ERROR, StringType())])
    arrow = to_arrow_schema(schema, timezone="UTC")

    def decode_batches(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        decode = make_decoder()
        for batch in batches:
            rows, errors = _decode_all(decode, batch.column(VALUE).to_pylist())
            columns = [
                *batch.columns,
                pa.array(rows, arrow.field(ROW).type),
                pa.array(errors, pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, ROW, ERROR])

    return renamed.mapInArrow(decode_batches, schema)


def _decode_all(decode: Decode, values: list[bytes | None]) -> tuple[list[dict[str, Any] | None], list[str | None]]:
    rows: list[dict[str, Any] | None] = []
    errors: list[str | None] = []
    for value in values:
        row, error = None, None
        if value is not None:
            try:
                row = decode(value)
            except DoesNotDecode as why:
                error = str(why)
        rows.append(row)
        errors.append(error)
    return rows, errors
