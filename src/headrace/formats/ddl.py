"""Parses column lists in SQL syntax, `id bigint, tags array<string>`, to Arrow types. Pure; needs no JVM."""

import re
from collections.abc import Iterator

import pyarrow as pa

from headrace.model.errors import InvalidConfig

_SIMPLE = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"decimal\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|(\w+))\s*[\s:]\s*(.+?)\s*", re.DOTALL)
_DECIMAL_DIGITS_MAX = 38  # the limit of Spark, Delta and Iceberg


def columns_of(text: str) -> pa.Schema:
    fields = [pa.field(name, kind) for name, kind in _columns(text)]
    names = [field.name.lower() for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidConfig(f"schema: the column {twice} is there twice")
    return pa.schema(fields)


def _columns(text: str) -> Iterator[tuple[str, pa.DataType]]:
    for part in _split(text):
        match = _COLUMN.fullmatch(part)
        if match is None:
            raise InvalidConfig(f"schema: {part.strip()!r} is no column; write NAME TYPE, NAME TYPE, …")
        yield match[1] or match[2], _type(match[3])


def _type(text: str) -> pa.DataType:
    word = text.strip().lower()
    if word in _SIMPLE:
        return _SIMPLE[word]
    decimal = _DECIMAL.fullmatch(word)
    if decimal is not None and int(decimal[2]) <= int(decimal[1]) <= _DECIMAL_DIGITS_MAX:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if word.startswith("array<") and word.endswith(">"):
        return pa.list_(pa.field("element", _type(text.strip()[len("array<") : -1])))
    if word.startswith("map<") and word.endswith(">"):
        return _map(text.strip()[len("map<") : -1])
    if word.startswith("struct<") and word.endswith(">"):
        return pa.struct(list(_columns(text.strip()[len("struct<") : -1])))
    known = ", ".join(_SIMPLE)
    raise InvalidConfig(
        f"schema: {text.strip()!r} is no type; there are {known}, decimal(p,s), array<…>, map<string,…> and struct<…>"
    )


def _map(text: str) -> pa.DataType:
    key, *items = _split(text)
    if key.strip().lower() != "string" or len(items) != 1:
        raise InvalidConfig(f"schema: a map is map<string,TYPE>, not map<{text.strip()}>")
    return pa.map_(pa.string(), _type(items[0]))


def _split(text: str) -> Iterator[str]:
    """Splits at commas outside of brackets."""
    depth = start = 0
    for at, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
