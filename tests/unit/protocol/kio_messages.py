"""Random messages in kio's classes, and kio's own reader and writer as the second opinion."""

import io
import struct
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from headrace.model.errors import ErrorCode
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import BY_HAND, message_class
from headrace.protocol.schema import EPOCH, FieldSchema, describe

COMPILED = sorted(set(SERVED) - BY_HAND - {ApiKey.PRODUCE, ApiKey.FETCH})
COMPILED_VERSIONS = [
    (api, version) for api in COMPILED for version in range(SERVED[api].lowest, SERVED[api].highest + 1)
]

TEXT = st.text(max_size=6)
NUMBERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "error_code": st.sampled_from([ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_CONFIG]),
    "timedelta_i32": st.integers(-(2**31), 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(-(2**40), 2**40).map(lambda ms: timedelta(milliseconds=ms)),
    # Not -1, which stands for "no time": kio writes it, and refuses to read it.
    "datetime_i64": st.integers(0, 2**41).map(lambda ms: EPOCH + timedelta(milliseconds=ms)),
    "uuid": st.none() | st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number)),
    "string": TEXT,
    "bytes": st.binary(max_size=6),
}


@cache
def messages(message: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(message, **{field.name: _values(field) for field in describe(message)})


def _values(field: FieldSchema) -> st.SearchStrategy[Any]:
    values = NUMBERS[field.kind] if field.struct is None else messages(field.struct)
    if field.is_array:
        values = st.lists(values, max_size=2).map(tuple)
    return st.none() | values if field.nullable else values


def kio_bytes(message: Any) -> bytes:
    from kio.serial import entity_writer

    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def kio_read(message: type[Any], data: bytes) -> Any:
    from kio.serial import entity_reader

    value, size = entity_reader(message)(data, 0)
    assert size == len(data), "kio leaves bytes over"
    return value


def kio_class(api: ApiKey, version: int, direction: str) -> type[Any]:
    return message_class(api, version, direction)


def as_version(value: Any, older: type[Any]) -> Any:
    """`value` of the newest version as `older` holds it: fields by name, the rest dropped or defaulted."""
    values = {}
    for field in describe(older):
        held = getattr(value, field.name, field.default)
        if held is None and field.kind == "string" and not field.nullable:
            held = ""
        if field.struct is not None and held is not None:
            struct = field.struct
            held = tuple(as_version(one, struct) for one in held) if field.is_array else as_version(held, struct)
        values[field.name] = held
    return older(**values)


def compact_array(count: int) -> bytes:
    out = bytearray()
    value = count + 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def legacy_array(count: int) -> bytes:
    return struct.pack(">i", count)
