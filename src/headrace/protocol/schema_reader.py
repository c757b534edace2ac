"""Compiles readers, which decode any served version of a message into an object of the newest one.

Every count and length is checked against the rest of the frame (`primitives.Reader`) and against the memory of the
resulting objects (`BoundedReader`), so that no number in a request is trusted.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from struct import Struct
from typing import Any, TypeAlias
from uuid import UUID

from headrace.model.errors import ProtocolError
from headrace.protocol.bounded_reader import (
    FIELD_WEIGHT,
    INT_WEIGHT,
    OBJECT_WEIGHT,
    POINTER_WEIGHT,
    UUID_WEIGHT,
    BoundedReader,
)
from headrace.protocol.primitives import Reader
from headrace.protocol.schema import FieldSchema, describe

Read: TypeAlias = Callable[[BoundedReader], Any]

_FLOAT64 = Struct(">d")

# Old fields that were replaced: (message, old field) → (new array of structs, the field of the struct that each old
# element fills).
_LIFTED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("DeleteTopicsRequest", "topic_names"): ("topics", "name"),
}


def _duration(read: Callable[[Reader], int]) -> Read:
    return lambda reader: timedelta(milliseconds=read(reader))


def _uuid(reader: Reader) -> UUID | None:
    value = reader.uuid()
    return value if value.int else None


def _bytes(reader: Reader) -> bytes:
    view = reader.nullable_bytes()
    if view is None:
        raise ProtocolError("null where bytes must be")
    return bytes(view)


def _nullable_bytes(reader: Reader) -> bytes | None:
    view = reader.nullable_bytes()
    return None if view is None else bytes(view)


# Kafka's name of a type → its reader, its smallest encoded size, its weight in memory. The smallest size of strings and
# bytes is that of the flexible encoding: one byte of length.
_PRIMITIVES: Mapping[str, tuple[Read, int, int]] = {
    "int8": (Reader.int8, 1, INT_WEIGHT),
    "int16": (Reader.int16, 2, INT_WEIGHT),
    "int32": (Reader.int32, 4, INT_WEIGHT),
    "int64": (Reader.int64, 8, INT_WEIGHT),
    "uint16": (lambda reader: int.from_bytes(reader.take(2), "big"), 2, INT_WEIGHT),
    "float64": (lambda reader: _FLOAT64.unpack(reader.take(8))[0], 8, INT_WEIGHT),
    "bool": (Reader.boolean, 1, 0),
    "error_code": (Reader.int16, 2, INT_WEIGHT),
    "timedelta_i32": (_duration(Reader.int32), 4, 2 * INT_WEIGHT),
    "timedelta_i64": (_duration(Reader.int64), 8, 2 * INT_WEIGHT),
    "uuid": (_uuid, 16, UUID_WEIGHT),
    "string": (BoundedReader.string, 1, 0),
    "bytes": (_bytes, 1, 2 * INT_WEIGHT),
}
_NULLABLE: Mapping[str, Read] = {"string": BoundedReader.nullable_string, "bytes": _nullable_bytes}


def compile_reader(message: type[Any], newest: type[Any]) -> Read:
    """Compiles a reader of `message` that creates a `newest`, matching fields by name."""
    newest_fields = {field.name: field for field in describe(newest)}
    steps: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    for field in describe(message):
        name, read = _compile_field(message.__name__, field, newest_fields)
        if field.tag is None:
            steps.append((name, read))
        else:
            tagged[field.tag] = (name, read)
    have = {name for name, _ in steps}
    defaults = {name: field.default for name, field in newest_fields.items() if name not in have}

    def read_message(reader: BoundedReader) -> Any:
        values = defaults.copy()
        for name, read in steps:
            values[name] = read(reader)
        if tagged:
            for tag, value in reader.tags():
                if tag in tagged:
                    name, read = tagged[tag]
                    values[name] = read(_frugal(value))
        else:
            reader.skip_tags()
        return newest(**values)

    return read_message


def _frugal(value: Reader) -> BoundedReader:
    return BoundedReader(value.take(value.remaining), flexible=True)


def _compile_field(message: str, field: FieldSchema, newest_fields: Mapping[str, FieldSchema]) -> tuple[str, Read]:
    lifted = _LIFTED.get((message, field.name))
    if lifted is not None:
        return _compile_lifted(field, newest_fields[lifted[0]], lifted[1])
    newest = newest_fields.get(field.name)
    if newest is None:
        raise TypeError(f"{message}.{field.name} has no field in the newest version")
    if field.struct is None:
        read, bytes_min, weight = _PRIMITIVES[field.kind]
        if field.nullable and not field.is_array:
            read = _NULLABLE.get(field.kind, read)
    else:
        assert newest.struct is not None, "a struct stays a struct"
        read = compile_reader(field.struct, newest.struct)
        bytes_min, weight = _bytes_min(field.struct), _weight(newest.struct)
        if field.nullable and not field.is_array:
            read = _nullable_struct(read)
    if field.is_array:
        read = _array(read, bytes_min, weight + POINTER_WEIGHT, field.nullable)
    return field.name, read


def _compile_lifted(old: FieldSchema, new: FieldSchema, inner_name: str) -> tuple[str, Read]:
    struct = new.struct
    assert struct is not None, "a lifted field became an array of structs"
    read, bytes_min, _ = _PRIMITIVES[old.kind]
    others = {field.name: field.default for field in describe(struct) if field.name != inner_name}

    def read_lifted(reader: BoundedReader) -> Any:
        return struct(**{inner_name: read(reader)}, **others)

    return new.name, _array(read_lifted, bytes_min, _weight(struct) + POINTER_WEIGHT, old.nullable)


def _array(read: Read, bytes_min: int, weight: int, nullable: bool) -> Read:
    def read_array(reader: BoundedReader) -> tuple[Any, ...] | None:
        indexes = reader.weighed_array(bytes_min, weight)
        if indexes is None:
            if not nullable:
                raise ProtocolError("null where an array must be")
            return None
        return tuple([read(reader) for _ in indexes])

    return read_array


def _nullable_struct(read: Read) -> Read:
    def read_nullable(reader: BoundedReader) -> Any:
        marker = reader.int8()  # -1 is null; any other value precedes the struct
        return None if marker < 0 else read(reader)

    return read_nullable


def _bytes_min(struct: type[Any]) -> int:
    """Returns the smallest encoded size of a struct, which bounds counts."""
    total = 0
    for field in describe(struct):
        if field.tag is None:
            plain = field.struct is None and not field.is_array
            total += _PRIMITIVES[field.kind][1] if plain else 1
    return max(total, 1)


def _weight(struct: type[Any]) -> int:
    """Returns the memory of one object without its strings and arrays, which are charged separately."""
    total = OBJECT_WEIGHT
    for field in describe(struct):
        total += FIELD_WEIGHT
        if field.struct is not None and not field.is_array:
            total += _weight(field.struct)
        elif not field.is_array:
            total += _PRIMITIVES[field.kind][2]
    return total
