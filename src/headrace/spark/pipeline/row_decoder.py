"""Decoding in Spark's Python workers, a batch of records at a time: Arrow in, Arrow out."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.spark.pipeline.decoding import ERROR, ROW, VALUE
from headrace.spark.values.row_decoder import RowDecoder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def with_decoded_row(
    renamed: "DataFrame", row_type: "pa.StructType", make_decoder: Callable[[], RowDecoder]
) -> "DataFrame":
    """`make_decoder` is called once in each worker: what it holds need not be pickled, only itself."""
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    row = StructField(ROW, from_arrow_type(row_type))
    schema = StructType([*renamed.schema.fields, row, StructField(ERROR, StringType())])

    def decode_batches(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        decoder = make_decoder()
        for batch in batches:
            decoded = decoder.decode(batch.column(VALUE).to_pylist())
            columns = [*batch.columns, decoded.rows, decoded.errors]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, ROW, ERROR])

    return renamed.mapInArrow(decode_batches, schema)
