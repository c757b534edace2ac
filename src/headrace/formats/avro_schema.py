"""Converts an Avro schema to columns.

fastavro reads with schemas without logical types (`avro_reader.py`), so values are Avro's plain numbers and bytes.
The columns of the reader's schema apply the logical types.
"""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from headrace.formats.arrow_columns import NONE, Column, Field, Leaf, List, Map, Struct
from headrace.formats.errors import Misfit, shown
from headrace.formats.scalar_columns import (
    DECIMAL_DIGITS_MAX,
    WORK,
    decimals,
    nanosecond_timestamps,
    plain,
    refuse,
    to_float,
    whole_dates,
    whole_timestamps,
)
from headrace.formats.timestamps import LOCAL_TIMESTAMP, TIMESTAMP
from headrace.model.errors import InvalidConfig

# A schema whose records are reused inside each other can have more columns than memory can hold.
COLUMNS_MAX = 10_000
UUID_BYTES = 16
_UNSCALED_BITS_MAX = 128  # of a decimal's unscaled value: 38 digits have 127 bits
_NAMED = ("record", "error", "enum", "fixed")
# Logical type → Avro types that it may annotate. It is ignored on others, as the specification requires.
_BASES = {
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
    "date": ("int",),
    **dict.fromkeys(("timestamp-millis", "timestamp-micros", "timestamp-nanos"), ("long",)),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"), ("long",)),
}
_MICROSECONDS = {"millis": 1000, "micros": 1}
# Unions of these are read as the wider type, as in Spark.
_WIDER = ({"int": "long", "long": "long"}, {"float": "double", "double": "double"})


class AvroSchema:
    """A record schema: fastavro's tree with full names, and the definitions of the names."""

    def __init__(self, tree: Any) -> None:
        import fastavro
        from fastavro.schema import UnknownType

        if not isinstance(tree, dict) or tree.get("type") != "record":
            raise InvalidConfig("the Avro schema must be one of a record: its fields become columns")
        try:
            root: Any = fastavro.parse_schema(tree)
        except UnknownType as error:
            raise InvalidConfig(f"the Avro type {error.name!r} is unknown") from error
        except Exception as error:  # invalid schemas make fastavro raise ValueError, UnknownType, KeyError …
            raise InvalidConfig(f"the Avro schema is not valid: {type(error).__name__} {error}") from error
        self.root: dict[str, Any] = root
        self.named: Mapping[str, Any] = self.root["__named_schemas"]

    @classmethod
    def of_text(cls, text: str) -> "AvroSchema":
        try:
            return cls(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InvalidConfig(f"an Avro schema is JSON, and this is not: {error}") from error

    def resolved(self, schema: Any) -> Any:
        """Returns the definition of a name; other schemas unchanged."""
        return self.named.get(schema, schema) if isinstance(schema, str) else schema


def kind_of(schema: Any) -> str:
    """Returns the Avro type without annotations: `union` for a list."""
    while isinstance(schema, dict):
        schema = schema["type"]
    return "union" if isinstance(schema, list) else str(schema)


def logical_of(schema: Any) -> str | None:
    """Returns the logical type if it is supported and annotates a valid type; otherwise None."""
    if not isinstance(schema, dict):
        return None
    logical = schema.get("logicalType")
    if kind_of(schema) not in _BASES.get(str(logical), ()):
        return None
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        right = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0
        return f"decimal({precision},{scale})" if right else None
    if logical == "uuid" and kind_of(schema) == "fixed" and schema["size"] != UUID_BYTES:
        return None
    return str(logical)


def columns(schema: AvroSchema, *, rounds: bool = False) -> Struct:
    """Returns a column for each field of the record. With `rounds`, nanoseconds are truncated to microseconds."""
    if not schema.root["fields"]:
        raise InvalidConfig("the Avro record has no fields, which become columns")
    return _Columns(schema, rounds).record(schema.root, ())


class _Columns:
    def __init__(self, schema: AvroSchema, rounds: bool) -> None:
        self._schema, self._rounds, self._count = schema, rounds, 0

    def record(self, record: Any, inside: tuple[str, ...]) -> Struct:
        name = record["name"]
        if name in inside:
            raise InvalidConfig(f"the Avro record {name} contains itself; a table has no recursive types")
        return Struct([Field(one["name"], self.column(one["type"], (*inside, name))) for one in record["fields"]])

    def column(self, schema: Any, inside: tuple[str, ...]) -> Column:
        self._count += 1
        if self._count > COLUMNS_MAX:
            raise InvalidConfig(f"the Avro schema has more than {COLUMNS_MAX} columns")
        schema = self._schema.resolved(schema)
        logical = logical_of(schema)
        if logical is not None:
            return _logical_column(schema, logical, self._rounds)
        match kind_of(schema):
            case "union":
                return self._union(schema if isinstance(schema, list) else schema["type"], inside)
            case "record" | "error":
                return self.record(schema, inside)
            case "array":
                return List(self.column(schema["items"], inside))
            case "map":
                return Map(pa.string(), self.column(schema["values"], inside))
            case kind if isinstance(schema, dict) and kind not in _PRIMITIVES and kind not in _NAMED:
                return self.column(kind, inside)  # a reference: {"type": "name of another"}
            case kind:
                return _primitive(kind)

    def _union(self, branches: list[Any], inside: tuple[str, ...]) -> Column:
        members = union_members(branches)
        if len(members) == 1:
            return self.column(members[0], inside)
        return Struct([Field(member_name(at), self.column(one, inside)) for at, one in enumerate(members)])


def union_members(branches: list[Any]) -> list[Any]:
    """Returns the types of a union without null. With one, the column has its type; with several, it is a struct of
    members.
    """
    members = [one for one in branches if kind_of(one) != "null"]
    if not members:
        raise InvalidConfig("a union of null alone has no values")
    for wider in _WIDER:
        if all(isinstance(one, str) and one in wider for one in members):
            return members if len(members) == 1 else [wider[members[0]]]
    return members


def member_name(at: int) -> str:
    """Returns the name of a union member as in Spark."""
    return f"member{at}"


def _logical_column(schema: Any, logical: str, rounds: bool) -> Leaf:
    if logical.startswith("decimal"):
        return _decimal(schema)
    if logical == "date":
        return whole_dates()
    if logical == "uuid":
        return plain(pa.string(), str, convert=_uuid_text)
    type_ = LOCAL_TIMESTAMP if logical.startswith("local-") else TIMESTAMP
    unit = logical.rpartition("-")[2]
    if unit == "nanos":
        return nanosecond_timestamps(type_, rounds=rounds)
    return whole_timestamps(type_, _MICROSECONDS[unit])


def _decimal(schema: Any) -> Leaf:
    precision, scale = schema["precision"], schema.get("scale", 0)
    if precision > DECIMAL_DIGITS_MAX:
        raise InvalidConfig(f"a decimal of {precision} digits has no column; there are at most {DECIMAL_DIGITS_MAX}")

    def number(value: Any) -> Decimal:
        unscaled = int.from_bytes(_raw(value), "big", signed=True)
        if unscaled.bit_length() > _UNSCALED_BITS_MAX:
            raise Misfit(f"a number of {unscaled.bit_length()} bits does not fit into decimal({precision},{scale})")
        return Decimal(unscaled).scaleb(-scale, WORK)

    return decimals(precision, scale, number, rounds=False)


def _raw(value: Any) -> bytes:
    """Returns bytes. A default of bytes is text in the schema, with one character per byte."""
    if isinstance(value, str):
        return value.encode("iso-8859-1", "replace")
    return value if isinstance(value, bytes) else bytes(refuse(value))


def _uuid_text(value: Any) -> str:
    raw = _raw(value)
    if len(raw) != UUID_BYTES:
        raise Misfit(f"{shown(value)} has not the {UUID_BYTES} bytes of a UUID")
    return str(UUID(bytes=raw))


# A boolean is one byte, 0 or 1. fastavro decodes any other byte as true, so it is read as a byte.
_BOOLEANS = {b"\0": False, b"\1": True, False: False, True: True, None: None}


def _booleans(values: list[Any]) -> pa.Array:
    try:
        return pa.array([_BOOLEANS[value] for value in values], pa.bool_())
    except KeyError as error:
        raise ValueError("not a boolean") from error


def _no_symbol(value: Any) -> Any:
    raise Misfit("the enum has no symbol of this index")


_PRIMITIVES = {
    "boolean": lambda: Leaf(pa.bool_(), frozenset({bytes, bool, NONE}), refuse, _booleans),
    "int": lambda: plain(pa.int32(), int),
    "long": lambda: plain(pa.int64(), int),
    "float": lambda: plain(pa.float32(), float, convert=to_float),
    "double": lambda: plain(pa.float64(), float, convert=to_float),
    "bytes": lambda: plain(pa.binary(), bytes, convert=_raw),
    "fixed": lambda: plain(pa.binary(), bytes, convert=_raw),
    "string": lambda: plain(pa.string(), str),
    "enum": lambda: plain(pa.string(), str, convert=_no_symbol),
}


def _primitive(kind: str) -> Leaf:
    if kind not in _PRIMITIVES:
        raise InvalidConfig(f"the Avro type {kind!r} has no column")
    return _PRIMITIVES[kind]()


def logical_types(schema: AvroSchema) -> dict[str, str]:
    """Returns the logical types by path, for comparing a writer's schema with a reader's."""
    return dict(_logical_types(schema, schema.root, "", ()))


def _logical_types(of: AvroSchema, schema: Any, path: str, inside: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    schema = of.resolved(schema)
    logical = logical_of(schema)
    if logical is not None:
        yield path, logical
    match kind_of(schema):
        case "union":
            for branch in schema if isinstance(schema, list) else schema["type"]:
                yield from _logical_types(of, branch, path, inside)
        case "record" | "error" if schema["name"] not in inside:
            for one in schema["fields"]:
                here = f"{path}.{one['name']}" if path else one["name"]
                yield from _logical_types(of, one["type"], here, (*inside, schema["name"]))
        case "array":
            yield from _logical_types(of, schema["items"], f"{path}[]", inside)
        case "map":
            yield from _logical_types(of, schema["values"], f"{path}{{}}", inside)
