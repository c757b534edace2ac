"""Decodes record values to columns of an archive whose topic has a schema. Used for archived and for live rows.

A value that does not decode leaves its columns null and sets `decode_error`. Its bytes are always in `value`, so a
wrong or late schema loses nothing.
"""

from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from headrace.formats.avro_reader import reader_of
from headrace.formats.avro_schema import AvroSchema, columns
from headrace.formats.ddl import columns_of
from headrace.formats.decoding_rules import TOMBSTONES, DecodingRules, rules_of
from headrace.formats.row_decoder import RowDecoder
from headrace.formats.text_decoder import text_decoder
from headrace.model.errors import InvalidConfig
from headrace.records.arrow.decode import HEADERS_TYPE

DECODE_ERROR = "decode_error"
RAW = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
JSON, AVRO = "json", "avro"
FORMATS = (JSON, AVRO)


class ValueSchema(NamedTuple):
    """How a topic's values are decoded to columns. Picklable: Spark's workers decode live rows with it."""

    format: str
    text: str  # JSON: the columns as the user wrote them; Avro: the schema
    options: tuple[tuple[str, str], ...] = ()  # options beyond the strict rules, by name

    @classmethod
    def parse(cls, text: str) -> "ValueSchema | None":
        """Parses the topic config archive.schema: `json:id bigint`, or `json;timestamps=milliseconds:at timestamp`."""
        if not text:
            return None
        head, colon, rest = text.partition(":")
        kind, *options = head.split(";")
        if not colon or kind not in FORMATS:
            raise InvalidConfig(f"archive.schema: {text!r} does not begin with {' or '.join(FORMATS)} and a colon")
        pairs = (one.partition("=") for one in options)
        decoding = cls(kind, rest.strip(), tuple((name.strip(), value.strip()) for name, _, value in pairs))
        decoding.schema()
        return decoding

    def decoder(self) -> RowDecoder:
        """Returns the decoder, which is cached: batches come by the thousand."""
        return _decoder(self)

    def __str__(self) -> str:
        return f"{';'.join((self.format, *map('='.join, self.options)))}:{self.text}"

    def rules(self) -> DecodingRules:
        """Returns the decoding rules: as strict as a pipeline's, but records without a value are valid; `value` is null
        then.
        """
        given = dict(self.options)
        if TOMBSTONES in given:
            raise InvalidConfig(f"decode_options: an archive has no option {TOMBSTONES!r}; such a record is a row")
        return rules_of(self.format, {**given, TOMBSTONES: "nulls"})

    def schema(self) -> pa.Schema:
        columns = pa.schema(list(self.decoder().type))
        taken = {name.lower() for name in (*RAW.names, DECODE_ERROR)}
        for name in columns.names:
            if name.lower() in taken:
                raise InvalidConfig(
                    f"schema: every archive has a column {name} already; leave it out, it stays readable in `value`"
                )
        return columns


@lru_cache(maxsize=256)  # for the topics that one process archives
def _decoder(decoding: ValueSchema) -> RowDecoder:
    rules = decoding.rules()
    if decoding.format == AVRO:
        schema = AvroSchema.of_text(decoding.text)
        return RowDecoder(reader_of(schema), columns(schema, rounds=rules.rounds))
    return text_decoder(JSON, columns_of(decoding.text), rules)


def archive_schema(decoding: ValueSchema | None) -> pa.Schema:
    if decoding is None:
        return RAW
    return pa.schema([*RAW, *decoding.schema(), pa.field(DECODE_ERROR, pa.string())])


def with_decoded(batch: pa.RecordBatch, decoding: ValueSchema | None) -> pa.RecordBatch:
    """Returns the batch with the decoded columns appended."""
    if decoding is None:
        return batch
    decoded = decoding.decoder().decode(batch.column("value").to_pylist())
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *decoded.rows.flatten(), decoded.errors],
        schema=pa.schema([*batch.schema, *decoded.rows.type, pa.field(DECODE_ERROR, pa.string())]),
    )
