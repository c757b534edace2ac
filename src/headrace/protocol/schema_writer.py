"""Compiles writers, which encode objects of the newest version in any served version.

Fields are matched by name. Fields that an older version lacks are omitted; fields that only it has get the schema's
default. Adjacent numbers are packed with one call, which makes this several times as fast as kio.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from operator import attrgetter
from struct import Struct
from typing import Any, TypeAlias
from uuid import UUID

from headrace.protocol.primitives import array_length, bytes_length, nullable_string, uvarint
from headrace.protocol.schema import EPOCH, FieldSchema, describe

Write: TypeAlias = Callable[[bytearray, Any], None]

_MILLISECOND = timedelta(milliseconds=1)
_NO_UUID = bytes(16)
_INT32 = Struct(">i")
_INT64 = Struct(">q")

# Types of a fixed size that struct can pack.
_FORMATS: Mapping[str, str] = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
}


def compile_writer(message: type[Any], newest: type[Any]) -> Write:
    """Compiles a writer of `newest` objects in the format of `message`."""
    flexible: bool = message.__flexible__
    newest_fields = {field.name: field for field in describe(newest)}
    steps: list[Write] = []
    tagged: list[tuple[FieldSchema, Write]] = []
    numbers: list[FieldSchema] = []
    for field in describe(message):
        if field.tag is not None:
            tagged.append((field, _compile_value(field, newest_fields, flexible)))
        elif field.kind in _FORMATS and not field.is_array and field.name in newest_fields:
            numbers.append(field)
        else:
            _flush(numbers, steps)
            steps.append(_compile_field(field, newest_fields, flexible))
    _flush(numbers, steps)
    if flexible:
        steps.append(_compile_tags(sorted(tagged, key=lambda entry: entry[0].tag or 0)))

    def write_message(out: bytearray, value: Any) -> None:
        for step in steps:
            step(out, value)

    return write_message


def _flush(numbers: list[FieldSchema], steps: list[Write]) -> None:
    """Appends one step for adjacent numbers."""
    if not numbers:
        return
    pack = Struct(">" + "".join(_FORMATS[field.kind] for field in numbers)).pack
    get = attrgetter(*(field.name for field in numbers))
    if len(numbers) == 1:
        steps.append(lambda out, value: out.extend(pack(get(value))))
    else:
        steps.append(lambda out, value: out.extend(pack(*get(value))))
    numbers.clear()


def _compile_field(field: FieldSchema, newest_fields: Mapping[str, FieldSchema], flexible: bool) -> Write:
    write = _compile_value(field, newest_fields, flexible)
    name = field.name
    if name not in newest_fields:
        constant = field.default
        return lambda out, value: write(out, constant)
    return lambda out, value: write(out, getattr(value, name))


def _compile_tags(tagged: list[tuple[FieldSchema, Write]]) -> Write:
    """Compiles a writer of the tagged fields. Fields with their default value are omitted, as every reader expects."""

    def write_tags(out: bytearray, value: Any) -> None:
        present = bytearray()
        count = 0
        for field, write in tagged:
            held = getattr(value, field.name, field.default)
            if held == field.default:
                continue
            body = bytearray()
            write(body, held)
            present += uvarint(field.tag or 0) + uvarint(len(body)) + body
            count += 1
        out += uvarint(count) + present

    return write_tags


def _compile_value(field: FieldSchema, newest_fields: Mapping[str, FieldSchema], flexible: bool) -> Write:
    """Compiles a writer of the value of a field."""
    if field.struct is None:
        write = _primitive(field.kind, flexible)
        if field.kind == "string" and not field.nullable:
            write = _never_null(write)
    else:
        newest = newest_fields.get(field.name, field)
        assert newest.struct is not None, "a struct stays a struct"
        write = compile_writer(field.struct, newest.struct)
        if field.is_array:
            return _array(_unless_encoded(write), flexible)
        if field.nullable:
            write = _nullable_struct(write)
    return _array(write, flexible) if field.is_array else write


def _primitive(kind: str, flexible: bool) -> Write:
    if kind in _FORMATS:
        pack = Struct(">" + _FORMATS[kind]).pack
        return lambda out, value: out.extend(pack(value))
    match kind:
        case "string":
            return lambda out, value: out.extend(nullable_string(value, flexible))
        case "bytes":
            return lambda out, value: _write_bytes(out, value, flexible)
        case "uuid":
            return _write_uuid
        case "timedelta_i32":
            return lambda out, value: out.extend(_INT32.pack(value // _MILLISECOND))
        case "timedelta_i64":
            return lambda out, value: out.extend(_INT64.pack(value // _MILLISECOND))
        case "datetime_i64":
            return lambda out, value: out.extend(_INT64.pack((value - EPOCH) // _MILLISECOND))
        case _:
            raise NotImplementedError(f"no writer for {kind} fields yet")


def _never_null(write: Write) -> Write:
    """Writes null as the empty string, for an older version without null."""
    return lambda out, value: write(out, "" if value is None else value)


def _write_bytes(out: bytearray, value: bytes | None, flexible: bool) -> None:
    out += array_length(-1, flexible) if value is None else bytes_length(len(value), flexible) + value


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += _NO_UUID if value is None else value.bytes


def _array(write: Write, flexible: bool) -> Write:
    def write_array(out: bytearray, value: Any) -> None:
        out += array_length(-1 if value is None else len(value), flexible)
        for element in value or ():
            write(out, element)

    return write_array


def _unless_encoded(write: Write) -> Write:
    """Appends elements that are already encoded unchanged: see `codec.encode_element`."""

    def write_element(out: bytearray, value: Any) -> None:
        if isinstance(value, bytes):
            out += value
        else:
            write(out, value)

    return write_element


def _nullable_struct(write: Write) -> Write:
    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out += b"\xff"
        else:
            out += b"\x01"
            write(out, value)

    return write_nullable
