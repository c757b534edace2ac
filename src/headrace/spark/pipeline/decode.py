"""Decodes the values of a source in Spark.

    raw        key, value, topic, partition, offset, timestamp, headers     as format("headrace") returns them
    decoded    the schema's columns, _key … _headers, _value, _error

Spark itself decodes raw values and text. All other formats are decoded in Python workers, by batches of records from
Arrow to Arrow, with the decoder that archives use too (`headrace.formats`): equal values are equal rows everywhere.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.formats.decoding_rules import rules_of
from headrace.formats.row_decoder import RowDecoder
from headrace.model.errors import InvalidConfig
from headrace.pipeline.definition import Format, Source
from headrace.pipeline.errors import concerning

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


ERROR = "_error"
VALUE = "_value"
ROW = "_row"
RAW_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
_SUBJECT = "subject"  # decode option: the registry's subject of the schema


def decoded(source: Source, raw: "DataFrame") -> "DataFrame":
    """Returns the decoded columns with the record's metadata; `_error` contains the reason why a record does not
    decode.
    """
    from pyspark.sql import functions as f

    renamed = raw.select(*(f.col(name).alias(f"_{name}") for name in RAW_COLUMNS))
    with concerning("sources", source.name, "schema"):
        rows = analysed(_with_row(source, renamed))
    if source.decoding.format in (Format.RAW, Format.TEXT):
        flat = rows.withColumn("value", f.col(ROW)).drop(ROW)
    else:
        flat = rows.select(*(f.col(f"_{name}") for name in RAW_COLUMNS), ERROR, f"{ROW}.*")
    return flat.withColumn(ERROR, f.coalesce(f.col(ERROR), _rejection(source, flat)))


def analysed(frame: "DataFrame") -> "DataFrame":
    """Returns the frame after analyzing it, so that errors are raised here. Spark Connect would raise them later."""
    frame.schema  # noqa: B018
    return frame


def _with_row(source: Source, renamed: "DataFrame") -> "DataFrame":
    """Adds `_row`, null if the record does not decode, and `_error`."""
    decoding = source.decoding
    with concerning("sources", source.name, "decode_options"):
        rules = rules_of(decoding.format, {name: one for name, one in decoding.options.items() if name != _SUBJECT})
    match decoding.format:
        case Format.RAW:
            return _errorless(renamed, VALUE)
        case Format.TEXT:
            return _text(renamed)
        case Format.JSON | Format.CSV:
            from headrace.spark.pipeline.decode_text import with_text_row

            return with_text_row(decoding.format, _fields(source), decoding.registry, rules, renamed)
        case Format.AVRO:
            from headrace.spark.pipeline.decode_avro import with_avro_row

            return with_avro_row(_schema(source), decoding.registry, rules, renamed)
        case Format.PROTOBUF:
            from headrace.spark.pipeline.decode_protobuf import compile_proto, find_message, with_protobuf_row

            compiled = compile_proto(_schema(source))
            with concerning("sources", source.name, "message"):
                message = find_message(compiled, decoding.message)
            return with_protobuf_row(compiled, message, decoding.registry, rules, renamed)


def _fields(source: Source) -> "pa.Schema":
    """Returns the columns of JSON and CSV, from Spark's DDL or from a JSON Schema."""
    from headrace.formats import json_schema

    if source.decoding.schema is None:
        return json_schema.columns(_schema(source))
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(source.decoding.schema)
    if not isinstance(schema, StructType):
        raise InvalidConfig(
            f"a schema has names and types, as in `id bigint, name string`, not {schema.simpleString()}"
        )
    return to_arrow_schema(schema, timezone="UTC")


def _schema(source: Source) -> str:
    """Returns the schema of the pipeline file, or else the newest in the registry, as which later ones are read."""
    decoding = source.decoding
    if decoding.schema is not None:
        return decoding.schema
    assert decoding.registry is not None, "a file without either is rejected"
    with concerning("sources", source.name, "registry"):
        return _registered_schema(source, decoding.registry)


def _registered_schema(source: Source, url: str) -> str:
    from headrace.formats import schema_registry

    kinds = {
        Format.JSON: schema_registry.JSON,
        Format.AVRO: schema_registry.AVRO,
        Format.PROTOBUF: schema_registry.PROTOBUF,
    }
    return schema_registry.registry_at(url).newest(_subject(source), kinds[source.decoding.format])


def _subject(source: Source) -> str:
    named = source.decoding.options.get(_SUBJECT)
    if named is not None:
        return named
    if len(source.topics) != 1:
        raise InvalidConfig(
            f"source {source.name}: the subject in the registry is unknown. Set "
            "`decode_options: {subject: orders-value}`, or give a schema"
        )
    return f"{source.topics[0]}-value"  # the name that Confluent's clients use


def _errorless(renamed: "DataFrame", column: str) -> "DataFrame":
    from pyspark.sql import functions as f

    return renamed.withColumn(ROW, f.col(column)).withColumn(ERROR, f.lit(None).cast("string"))


def _text(renamed: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    text = f.col(VALUE).cast("string")
    broken = text.isNotNull() & ~f.is_valid_utf8(text)
    return renamed.withColumn(ROW, f.when(~broken, text)).withColumn(ERROR, f.when(broken, "the value is not UTF-8"))


def _rejection(source: Source, rows: "DataFrame") -> "Column":
    """Returns the first reject rule that applies to a row. A rule that evaluates to null, because a column is null,
    does not apply.
    """
    from pyspark.sql import functions as f

    rejection = f.lit(None).cast("string")
    for reason, condition in reversed(list(source.rejects.items())):
        with concerning("sources", source.name, "reject", reason):
            analysed(rows.where(f.expr(condition)))
        rejection = f.when(f.expr(condition), f"rejected: {reason}").otherwise(rejection)
    return rejection


def with_decoded_row(
    renamed: "DataFrame", row_type: "pa.StructType", make_decoder: Callable[[], RowDecoder]
) -> "DataFrame":
    """Adds the decoded columns. `make_decoder` is called once per worker; it must be picklable, its result need not."""
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
