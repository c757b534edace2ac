"""Values as columns of the archive, where the topic has a schema. The same code serves the archiver and live rows.

A value that does not fit leaves its columns empty and says why in `decode_error`; its bytes are in `value` as always,
so nothing is lost by a schema that is wrong or late.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from headrace.model.errors import InvalidConfig
from headrace.records.arrow import HEADERS_TYPE
from headrace.spark.archive.ddl import columns_of
from headrace.spark.pipeline import avro
from headrace.spark.pipeline.row_decoder import Decode, DoesNotDecode

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


class Decoding(NamedTuple):
    """How a topic's values become columns. Picklable: Spark's workers decode live rows with it."""

    format: str
    text: str  # JSON: the columns as the user wrote them; Avro: the schema

    @classmethod
    def parse(cls, text: str) -> "Decoding | None":
        """Of the topic config archive.schema."""
        if not text:
            return None
        kind, colon, rest = text.partition(":")
        if not colon or kind not in FORMATS:
            raise InvalidConfig(f"archive.schema: {text!r} does not begin with {' or '.join(FORMATS)} and a colon")
        decoding = cls(kind, rest.strip())
        decoding.schema()
        return decoding

    def __str__(self) -> str:
        return f"{self.format}:{self.text}"

    def schema(self) -> pa.Schema:
        columns = columns_of(self.text if self.format == JSON else avro.columns(avro.parsed(self.text)))
        taken = {name.lower() for name in (*RAW.names, DECODE_ERROR)}
        for name in columns.names:
            if name.lower() in taken:
                raise InvalidConfig(
                    f"schema: every archive has a column {name} already; leave it out, it stays readable in `value`"
                )
        return columns


def archive_schema(decoding: Decoding | None) -> pa.Schema:
    if decoding is None:
        return RAW
    return pa.schema([*RAW, *decoding.schema(), pa.field(DECODE_ERROR, pa.string())])


def with_decoded(batch: pa.RecordBatch, decoding: Decoding | None) -> pa.RecordBatch:
    """The batch with the columns of its values behind its own."""
    if decoding is None:
        return batch
    schema = decoding.schema()
    decode = _from_json if decoding.format == JSON else avro.decoder(avro.parsed(decoding.text), None)
    documents, errors = _documents(batch.column("value").to_pylist(), decode)
    arrays = _arrays(documents, errors, schema)
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *arrays, pa.array(errors, pa.string())],
        schema=pa.schema([*batch.schema, *schema, pa.field(DECODE_ERROR, pa.string())]),
    )


def _documents(values: Sequence[bytes | None], decode: Decode) -> tuple[list[dict[str, Any]], list[str | None]]:
    documents: list[dict[str, Any]] = []
    errors: list[str | None] = []
    for value in values:
        document: dict[str, Any] = {}
        error = None
        if value is not None:
            try:
                document = decode(value)
            except DoesNotDecode as why:
                error = str(why)
        documents.append(document)
        errors.append(error)
    return documents, errors


def _from_json(value: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as why:
        raise DoesNotDecode(f"not JSON: {why}") from why
    if not isinstance(document, dict):
        raise DoesNotDecode(f"a JSON {type(document).__name__}, not an object")
    return document


def _arrays(documents: list[dict[str, Any]], errors: list[str | None], schema: pa.Schema) -> list[pa.Array]:
    """A column for each field; a document that one of them does not fit is emptied, and all are made again."""
    arrays: list[pa.Array] = []
    for field in schema:
        values = [document.get(field.name) for document in documents]
        try:
            arrays.append(_array(values, field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            for at, value in enumerate(values):
                error = _misfit(value, field)
                if error is not None:
                    documents[at], errors[at] = {}, error
            return _arrays(documents, errors, schema)
    return arrays


def _misfit(value: Any, field: pa.Field) -> str | None:
    try:
        _array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return f"{field.name}: {str(value)[:100]!r} is no {field.type}"
    return None


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    is_temporal = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if (is_temporal or pa.types.is_decimal(kind)) and any(isinstance(value, (str, int, float)) for value in values):
        return _from_text(values, kind)  # JSON has no such things: they come as text, decimals also as numbers
    if not pa.types.is_boolean(kind) and any(value is True or value is False for value in values):
        raise TypeError("True and False are whole numbers to Python, and none to anybody else")
    return pa.array(values, kind)


def _from_text(values: list[Any], kind: pa.DataType) -> pa.Array:
    texts = pa.array([None if value is None else _text(value) for value in values], pa.string())
    if not pa.types.is_timestamp(kind):
        return texts.cast(kind)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:  # without an offset, which means UTC
        return texts.cast(pa.timestamp("us")).cast(kind)


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TypeError(f"{value!r} is neither a text nor a number")
    return str(value)
