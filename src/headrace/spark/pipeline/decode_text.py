"""Decodes JSON and CSV values of a source: plain, or JSON in the wire format of a schema registry."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.formats.decoding_rules import DecodingRules
from headrace.formats.row_decoder import Read, RowDecoder
from headrace.formats.schema_registry import JSON
from headrace.formats.text_decoder import text_columns, text_decoder
from headrace.formats.wire_format import HEAD_BYTES, Writers, schema_id_of
from headrace.spark.pipeline.decode import with_decoded_row

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def with_text_row(
    format_: str, fields: "Sequence[pa.Field]", registry_url: str | None, rules: DecodingRules, renamed: "DataFrame"
) -> "DataFrame":
    fields = list(fields)
    row_type = text_columns(format_, fields, rules).type

    def make_decoder() -> RowDecoder:
        decoder = text_decoder(format_, fields, rules)
        return decoder if registry_url is None else decoder.reading(lambda read: _framed(read, registry_url))

    return with_decoded_row(renamed, row_type, make_decoder)


def _framed(read: Read, registry_url: str) -> Read:
    """Requires a registered schema id before the JSON text, although decoding does not need the writer's schema."""
    writers = Writers(registry_url, JSON, lambda text: text)

    def framed(value: bytes) -> Any:
        writers.of(schema_id_of(value))
        return read(value[HEAD_BYTES:])

    return framed
