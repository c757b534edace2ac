"""Avro values: the schema as Spark types, and a decoder for Python workers (fastavro)."""

import json
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from headrace.model.errors import InvalidConfig
from headrace.spark.pipeline.problems import SchemaMistake
from headrace.spark.pipeline.registry import AVRO
from headrace.spark.pipeline.row_decoder import Decode, DoesNotDecode, with_decoded_row
from headrace.spark.pipeline.wire_format import HEAD_BYTES, Writers, schema_id_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PRIMITIVES = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
    "uuid": "string",
}


def with_avro_row(schema: str, registry_url: str | None, renamed: "DataFrame") -> "DataFrame":
    reader = parsed(schema)
    row_type = columns(reader)
    return with_decoded_row(renamed, row_type, lambda: decoder(reader, registry_url))


def parsed(schema: str) -> dict[str, Any]:
    """The schema of a record; anything else has no columns."""
    try:
        tree = json.loads(schema)
    except json.JSONDecodeError as error:
        raise SchemaMistake(f"an Avro schema is JSON, and this is not: {error.msg}", error.lineno) from error
    if not isinstance(tree, dict) or tree.get("type") != "record":
        raise InvalidConfig("the Avro schema must be one of a record: its fields become columns")
    return tree


def columns(record: dict[str, Any]) -> str:
    """The fields of a record as DDL."""
    try:
        return ", ".join(f"`{one['name']}` {spark_type(one['type'])}" for one in record["fields"])
    except KeyError as error:
        raise InvalidConfig(f"something in the Avro schema has no {error.args[0]}") from error


def spark_type(schema: Any, named: Mapping[str, Any] | None = None) -> str:
    """Spark's type for an Avro schema, as DDL. Names are looked up in the records and enums around it."""
    known = dict(named or {})
    if isinstance(schema, list):
        return _union_type(schema, known)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in known:
            return spark_type(known[schema], {name: one for name, one in known.items() if name != schema})
        raise InvalidConfig(f"Avro type {schema!r} is unknown, or refers to itself; Spark has no recursive types")
    return _complex_type(schema, known)


def _complex_type(schema: Mapping[str, Any], known: dict[str, Any]) -> str:
    kind = schema.get("type")
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    match kind:
        case "record":
            inside = {**known, **_named(schema)}
            fields = ", ".join(f"`{one['name']}`: {spark_type(one['type'], inside)}" for one in schema["fields"])
            return f"struct<{fields}>"
        case "enum":
            return "string"
        case "fixed":
            return "binary"
        case "array":
            return f"array<{spark_type(schema['items'], known)}>"
        case "map":
            return f"map<string, {spark_type(schema['values'], known)}>"
        case _:
            return spark_type(kind, known)


def _named(record: Mapping[str, Any]) -> dict[str, Any]:
    """Types that the fields of a record define, for later fields that only name them."""
    found: dict[str, Any] = {}
    for one in record["fields"]:
        for schema in one["type"] if isinstance(one["type"], list) else [one["type"]]:
            if isinstance(schema, dict) and schema.get("type") in ("record", "enum", "fixed"):
                found[schema["name"]] = schema
    return found


def _union_type(branches: list[Any], known: dict[str, Any]) -> str:
    types = {spark_type(branch, known) for branch in branches if branch != "null"}
    if len(types) != 1:
        raise InvalidConfig(f"a union of {', '.join(sorted(types))} is no column; only one type or null is")
    return types.pop()


def decoder(reader: dict[str, Any], registry_url: str | None) -> Decode:
    import fastavro

    if registry_url is None:
        own = fastavro.parse_schema(reader)
        return lambda value: _read(value, own, own)
    writers = Writers(registry_url, AVRO, _parsed_for_reading)
    target = fastavro.parse_schema(reader)

    def decode(value: bytes) -> dict[str, Any]:
        return _read(value[HEAD_BYTES:], writers.of(schema_id_of(value)), target)

    return decode


def _parsed_for_reading(schema: str) -> Any:
    import fastavro

    try:
        return fastavro.parse_schema(json.loads(schema))
    except Exception as error:  # whatever the text leads it to: ValueError, UnknownType, KeyError …
        raise InvalidConfig(f"{type(error).__name__} {error}") from error


def _read(value: bytes, writer: Any, reader: Any) -> dict[str, Any]:
    import fastavro

    stream = BytesIO(value)
    try:
        row = fastavro.schemaless_reader(stream, writer, reader)
    except Exception as error:  # fastavro raises whatever the bytes lead it to: EOFError, IndexError, ValueError …
        raise DoesNotDecode(f"not Avro of this schema: {type(error).__name__} {error}") from error
    if stream.tell() != len(value):
        raise DoesNotDecode(f"not Avro of this schema: {len(value) - stream.tell()} bytes are left over")
    if not isinstance(row, dict):
        raise DoesNotDecode("not a record")
    return row
