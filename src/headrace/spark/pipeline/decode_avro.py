"""Decodes Avro values of a source, plain or in the wire format of a schema registry."""

import json
from typing import TYPE_CHECKING, Any

from headrace.formats.avro_reader import reader_of, resolver
from headrace.formats.avro_schema import AvroSchema, columns
from headrace.formats.decoding_rules import DecodingRules
from headrace.formats.row_decoder import Read, RowDecoder
from headrace.formats.schema_registry import AVRO
from headrace.formats.wire_format import HEAD_BYTES, Writers, schema_id_of
from headrace.model.errors import InvalidConfig
from headrace.pipeline.errors import SchemaMistake
from headrace.spark.pipeline.decode import with_decoded_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_avro_row(schema: str, registry_url: str | None, rules: DecodingRules, renamed: "DataFrame") -> "DataFrame":
    reader = parsed(schema)
    row_type = columns(reader).type
    reader_of(reader)  # rejects unsupported schemas here rather than in a worker

    def make_decoder() -> RowDecoder:
        return avro_decoder(parsed(schema), registry_url, rules)

    return with_decoded_row(renamed, row_type, make_decoder)


def parsed(schema: str) -> AvroSchema:
    """Returns the schema of a record. Other types have no columns and are rejected."""
    try:
        tree = json.loads(schema)
    except json.JSONDecodeError as error:
        raise SchemaMistake(f"an Avro schema is JSON, and this is not: {error.msg}", error.lineno) from error
    except RecursionError as error:
        raise InvalidConfig("the Avro schema is nested too deeply") from error
    return AvroSchema(tree)


def avro_decoder(reader: AvroSchema, registry_url: str | None, rules: DecodingRules) -> RowDecoder:
    read = reader_of(reader) if registry_url is None else _framed(reader, registry_url)
    return RowDecoder(read, columns(reader, rounds=rules.rounds), null_values=rules.tombstone_error)


def _framed(reader: AvroSchema, registry_url: str) -> Read:
    def reading(text: str) -> Read:
        try:
            writer = parsed(text)
            return reader_of(reader) if writer.root == reader.root else resolver(writer, reader)
        except RecursionError as error:
            raise InvalidConfig("the Avro schema is nested too deeply") from error

    writers = Writers(registry_url, AVRO, reading)

    def read(value: bytes) -> Any:
        return writers.of(schema_id_of(value))(value[HEAD_BYTES:])

    return read
