"""Kafka's messages as plain dictionaries: written to and read from bytes by the schemas of kio's classes.

Written without checks, so that a test can send what no client library would: a null array, a count without elements,
an undefined tag. kio's own writer and reader refuse those.
"""

import struct
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin
from uuid import UUID

from kio.schema.index import api_key_map

Values = Mapping[str, Any]

UNKNOWN_TAG = 99
UNKNOWN_TAG_DATA = b"new"
CLIENT_ID = "c1"
_NUMBERS = {
    "int8": ">b",
    "int16": ">h",
    "uint16": ">H",
    "int32": ">i",
    "int64": ">q",
    "float64": ">d",
    "bool": ">?",
    "error_code": ">h",
    "timedelta_i32": ">i",
    "timedelta_i64": ">q",
    "datetime_i64": ">q",
}


class Count(NamedTuple):
    """Stands for an array that says how many elements it has, and has none of them."""

    count: int


class Field(NamedTuple):
    name: str
    kind: str  # empty for a struct
    struct: type[Any] | None
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any


def message(api: int, version: int, direction: str) -> type[Any]:
    name = api_key_map[api]
    module = import_module(f"kio.schema.{name}.v{version}.{direction}")
    words = "".join(word.capitalize() for word in name.split("_"))
    found: type[Any] = getattr(module, words + direction.capitalize())
    return found


def label(api: int) -> str:
    """As Kafka's own names have it: ListOffsets."""
    return "".join(word.capitalize() for word in api_key_map[api].split("_"))


@cache
def schema(kind: type[Any]) -> tuple[Field, ...]:
    return tuple(_field(one) for one in fields(kind))


def _field(one: Any) -> Field:
    inner, is_nullable = one.type, False
    if get_origin(inner) in (Union, UnionType):
        (inner,) = (part for part in get_args(inner) if part is not NoneType)
        is_nullable = True
    is_array = get_origin(inner) is tuple
    if is_array:
        inner = get_args(inner)[0]
    is_struct = isinstance(inner, type) and is_dataclass(inner)
    kind = "" if is_struct else one.metadata["kafka_type"]
    if one.default is not MISSING:
        default = _plain(one.default)
    elif is_array:
        default = []
    elif is_struct:
        default = None if is_nullable else {}
    else:
        default = {"string": "", "bytes": b"", "records": None, "uuid": UUID(int=0)}.get(kind, 0)
    return Field(one.name, kind, inner if is_struct else None, is_array, is_nullable, one.metadata.get("tag"), default)


def _plain(value: Any) -> Any:
    """A value of kio's as this module has it."""
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    return value


# Writing


def request_frame(
    api: int,
    version: int,
    values: Values,
    correlation_id: int,
    *,
    client_id: str | None = CLIENT_ID,
    with_unknown_tags: bool = False,
) -> bytes:
    """Without its size."""
    kind = message(api, version, "request")
    out = bytearray(struct.pack(">hhi", api, version, correlation_id))
    _write_string(out, client_id, is_flexible=False)
    if kind.__header_schema__.__flexible__:
        _write_tags(out, {}, with_unknown=with_unknown_tags)
    write(out, kind, values, with_unknown_tags=with_unknown_tags)
    return bytes(out)


def write(out: bytearray, kind: type[Any], values: Values, *, with_unknown_tags: bool = False) -> None:
    is_flexible: bool = kind.__flexible__
    tagged = {}
    for field in schema(kind):
        value = values.get(field.name, field.default)
        if field.tag is not None:
            if field.name in values:
                held = bytearray()
                _write_field(held, field, value, is_flexible, with_unknown_tags)
                tagged[field.tag] = bytes(held)
        else:
            _write_field(out, field, value, is_flexible, with_unknown_tags)
    if is_flexible:
        _write_tags(out, tagged, with_unknown=with_unknown_tags)


def _write_field(out: bytearray, field: Field, value: Any, is_flexible: bool, with_unknown_tags: bool) -> None:
    if not field.is_array:
        _write_one(out, field, value, is_flexible, with_unknown_tags)
    elif value is None or isinstance(value, Count):
        _write_length(out, -1 if value is None else value.count, is_flexible, ">i")
    else:
        _write_length(out, len(value), is_flexible, ">i")
        for one in value:
            _write_one(out, field, one, is_flexible, with_unknown_tags)


def _write_one(out: bytearray, field: Field, value: Any, is_flexible: bool, with_unknown_tags: bool) -> None:
    if field.struct is not None:
        if field.is_nullable and not field.is_array:
            out += struct.pack(">b", -1 if value is None else 1)
        if value is not None:
            write(out, field.struct, value, with_unknown_tags=with_unknown_tags)
    elif field.kind in _NUMBERS:
        out += struct.pack(_NUMBERS[field.kind], value)
    elif field.kind == "uuid":
        out += (value or UUID(int=0)).bytes
    elif field.kind == "string":
        _write_string(out, value, is_flexible)
    else:
        _write_length(out, -1 if value is None else len(value), is_flexible, ">i")
        out += value or b""


def _write_string(out: bytearray, value: str | None, is_flexible: bool) -> None:
    data = None if value is None else value.encode()
    _write_length(out, -1 if data is None else len(data), is_flexible, ">h")
    out += data or b""


def _write_length(out: bytearray, length: int, is_flexible: bool, legacy: str) -> None:
    if is_flexible:
        _write_varint(out, length + 1)
    else:
        out += struct.pack(legacy, length)


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_tags(out: bytearray, tagged: Mapping[int, bytes], *, with_unknown: bool) -> None:
    if with_unknown:
        tagged = {**tagged, UNKNOWN_TAG: UNKNOWN_TAG_DATA}
    _write_varint(out, len(tagged))
    for tag, data in sorted(tagged.items()):
        _write_varint(out, tag)
        _write_varint(out, len(data))
        out += data


# Reading


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, size: int) -> bytes:
        assert 0 <= size <= len(self.data) - self.position, "the response ends in the middle of a field"
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def length(self, is_flexible: bool, legacy: str) -> int:
        return self.varint() - 1 if is_flexible else self.number(legacy)


def read_response(api: int, version: int, frame: bytes) -> dict[str, Any]:
    """Of a frame without its size. What does not belong to the message is under "rest"."""
    kind = message(api, version, "response")
    reader = _Reader(frame)
    reader.take(4)
    if kind.__header_schema__.__flexible__:
        assert reader.varint() == 0, "a response header has no tags"
    found = _read(reader, kind)
    if reader.position < len(frame):
        found["rest"] = frame[reader.position :]
    return found


def _read(reader: _Reader, kind: type[Any]) -> dict[str, Any]:
    known = schema(kind)
    is_flexible: bool = kind.__flexible__
    found = {field.name: _read_field(reader, field, is_flexible) for field in known if field.tag is None}
    if not is_flexible:
        return found
    by_tag = {field.tag: field for field in known if field.tag is not None}
    for _ in range(reader.varint()):
        tag = reader.varint()
        size = reader.varint()
        field = by_tag.get(tag)
        if field is None:
            found[f"tag {tag}"] = reader.take(size)
        else:
            found[field.name] = _read_field(reader, field, is_flexible)
    return found


def _read_field(reader: _Reader, field: Field, is_flexible: bool) -> Any:
    if not field.is_array:
        return _read_one(reader, field, is_flexible)
    count = reader.length(is_flexible, ">i")
    return None if count < 0 else [_read_one(reader, field, is_flexible) for _ in range(count)]


def _read_one(reader: _Reader, field: Field, is_flexible: bool) -> Any:
    if field.struct is not None:
        if field.is_nullable and not field.is_array and reader.number(">b") < 0:
            return None
        return _read(reader, field.struct)
    if field.kind in _NUMBERS:
        return reader.number(_NUMBERS[field.kind])
    if field.kind == "uuid":
        return UUID(bytes=reader.take(16))
    size = reader.length(is_flexible, ">h" if field.kind == "string" else ">i")
    if size < 0:
        return None
    data = reader.take(size)
    return data.decode() if field.kind == "string" else data


def errors_in(response: Any) -> list[int]:
    """Every error code of a response that is one."""
    if isinstance(response, list):
        return [code for one in response for code in errors_in(one)]
    if not isinstance(response, dict):
        return []
    found = []
    for name, value in response.items():
        if name.endswith("error_code"):
            found += [value] if value else []
        else:
            found += errors_in(value)
    return found


def text(value: Any) -> str:
    """A response on one line, for people. Zeros, nulls and empty fields are left out."""
    if isinstance(value, dict):
        shown = {
            name: one for name, one in value.items() if one not in (0, None, "", b"", [], UUID(int=0)) or one is True
        }
        return "{" + ", ".join(f"{name}={text(one)}" for name, one in shown.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value)) + "]"
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 64 else f"{value[:16].hex()}... ({len(value)} bytes)"
    if isinstance(value, str):
        return repr(value)
    return str(value)


def difference(expected: Any, actual: Any, path: str = "") -> str | None:
    """The first field that differs."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in [*expected, *(name for name in actual if name not in expected)]:
            place = f"{path}.{name}" if path else name
            if name not in actual or name not in expected:
                return f"{place}: {'only now' if name in actual else 'no longer'}: {text((actual | expected)[name])}"
            found = difference(expected[name], actual[name], place)
            if found is not None:
                return found
        return None
    if isinstance(expected, list) and isinstance(actual, list):
        for number, (one, other) in enumerate(zip(expected, actual, strict=False)):
            found = difference(one, other, f"{path}[{number}]")
            if found is not None:
                return found
        if len(expected) != len(actual):
            return f"{path}: {len(expected)} elements recorded, {len(actual)} now"
        return None
    return None if expected == actual else f"{path}: {text(expected)} recorded, {text(actual)} now"
