"""From a topic's records to the columns that a transform sees, and an error where a record does not fit.

    raw       key, value, topic, partition, offset, timestamp, headers     as format("headrace") gives them
    decoded   the schema's columns, _key … _headers, _value, _error

JSON, CSV and text are decoded by Spark itself; Avro and Protobuf by Python workers, a batch of records at a time
(`avro.py`, `protobuf.py`): Spark's own functions for these need jars.
"""

from typing import TYPE_CHECKING

from headrace.spark.pipeline.spec import Decoding, Format, Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ERROR = "_error"
VALUE = "_value"
ROW = "_row"
_CORRUPT = "_headrace_corrupt"
RAW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
# Confluent's wire format: a zero, then four bytes that name the schema.
WIRE_FORMAT_BYTES = 5


def decoded(source: Source, raw: "DataFrame") -> "DataFrame":
    """Decoded columns and positions; `_error` tells why a record is not one of this source."""
    from pyspark.sql import functions as f

    renamed = raw.select(*(f.col(name).alias(f"_{name}") for name in RAW_COLUMNS))
    rows = _with_row(source, renamed)
    if source.decoding.format in (Format.RAW, Format.TEXT):
        flat = rows.withColumn("value", f.col(ROW)).drop(ROW)
    else:
        flat = rows.select(*(f.col(f"_{name}") for name in RAW_COLUMNS), ERROR, f"{ROW}.*").drop(_CORRUPT)
    return flat.withColumn(ERROR, f.coalesce(f.col(ERROR), _rejection(source)))


def _with_row(source: Source, renamed: "DataFrame") -> "DataFrame":
    """`_row`, null where there is none, and `_error`."""
    decoding = source.decoding
    subject = f"{source.topics[0]}-value" if source.topics else None  # as Confluent's clients name them
    match decoding.format:
        case Format.RAW:
            return _errorless(renamed, VALUE)
        case Format.TEXT:
            return _text(renamed)
        case Format.JSON | Format.CSV:
            return _structured(decoding, renamed)
        case Format.AVRO:
            from headrace.spark.pipeline.avro import with_avro_row

            return with_avro_row(decoding, renamed, subject)
        case Format.PROTOBUF:
            from headrace.spark.pipeline.protobuf import with_protobuf_row

            return with_protobuf_row(decoding, renamed, subject)


def _errorless(renamed: "DataFrame", column: str) -> "DataFrame":
    from pyspark.sql import functions as f

    return renamed.withColumn(ROW, f.col(column)).withColumn(ERROR, f.lit(None).cast("string"))


def _text(renamed: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    text = f.col(VALUE).cast("string")
    broken = text.isNotNull() & ~f.is_valid_utf8(text)
    return renamed.withColumn(ROW, f.when(~broken, text)).withColumn(ERROR, f.when(broken, "the value is not UTF-8"))


def _structured(decoding: Decoding, renamed: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    options = {**decoding.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    schema = f"{decoding.schema}, {_CORRUPT} string"
    text = f.col(VALUE)
    if decoding.registry is not None:
        text = f.substring(text, WIRE_FORMAT_BYTES + 1, 2**31 - 1)
    parse = f.from_json if decoding.format is Format.JSON else f.from_csv
    rows = renamed.withColumn(ROW, parse(text.cast("string"), schema, options))
    fits = f.col(f"{ROW}.{_CORRUPT}").isNull()
    why = f"the value is not the {decoding.format.upper()} that the schema asks for"
    return rows.withColumn(ERROR, f.when(~fits, why))


def _rejection(source: Source) -> "Column":
    """The first rule that a row breaks. A rule that says null, because a column is null, is not broken."""
    from pyspark.sql import functions as f

    rejection = f.lit(None).cast("string")
    for reason, condition in reversed(list(source.rejects.items())):
        rejection = f.when(f.expr(condition), f"rejected: {reason}").otherwise(rejection)
    return rejection
