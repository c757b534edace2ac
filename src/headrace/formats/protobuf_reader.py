"""Decodes Protobuf messages to columns and rows.

The protobuf package's parser accepts messages without required fields and proto2 strings that are not UTF-8. A table
can represent neither, so both are errors here.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.formats.arrow_columns import Column, Field, List, Map, Struct
from headrace.formats.decoding_rules import DecodingRules
from headrace.formats.errors import DoesNotDecode
from headrace.formats.row_decoder import Read
from headrace.formats.scalar_columns import nanosecond_timestamps, plain
from headrace.formats.timestamps import TIMESTAMP
from headrace.model.errors import InvalidConfig

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_TIMESTAMP = "google.protobuf.Timestamp"
_NANOSECONDS = 1_000_000_000
_UINT64 = pa.decimal128(20, 0)

Value = Callable[[Any], Any]


def message_columns(message: "Descriptor", rules: DecodingRules) -> Struct:
    return _columns(message, rules, ())


def _columns(message: "Descriptor", rules: DecodingRules, inside: tuple[str, ...]) -> Struct:
    if message.full_name in inside:
        raise InvalidConfig(f"message {message.full_name} contains itself; Spark has no recursive types")
    deeper = (*inside, message.full_name)
    return Struct([Field(one.name, _column(one, rules, deeper)) for one in message.fields])


def _column(field: "FieldDescriptor", rules: DecodingRules, inside: tuple[str, ...]) -> Column:
    entry = _map_entry(field)
    if entry is not None:
        key, item = entry.fields
        return Map(_single_column(key, rules, inside).type, _single_column(item, rules, inside))
    single = _single_column(field, rules, inside)
    return List(single) if field.is_repeated else single


def _single_column(field: "FieldDescriptor", rules: DecodingRules, inside: tuple[str, ...]) -> Column:
    kinds: dict[int, tuple[pa.DataType, type]] = {
        field.CPPTYPE_BOOL: (pa.bool_(), bool),
        field.CPPTYPE_INT32: (pa.int32(), int),
        field.CPPTYPE_INT64: (pa.int64(), int),
        field.CPPTYPE_UINT32: (pa.int64(), int),
        field.CPPTYPE_UINT64: (_UINT64, Decimal),
        field.CPPTYPE_FLOAT: (pa.float32(), float),
        field.CPPTYPE_DOUBLE: (pa.float64(), float),
        field.CPPTYPE_ENUM: (pa.string(), str),
        field.CPPTYPE_STRING: (pa.binary(), bytes) if field.type == field.TYPE_BYTES else (pa.string(), str),
    }
    if field.message_type is None:
        return plain(*kinds[field.cpp_type])
    if field.message_type.full_name == _TIMESTAMP:
        return nanosecond_timestamps(TIMESTAMP, rounds=rules.rounds)
    return _columns(field.message_type, rules, inside)


def _map_entry(field: "FieldDescriptor") -> "Descriptor | None":
    """Returns the message type of key and value if the field is a map; otherwise None."""
    entry = field.message_type
    return entry if entry is not None and entry.GetOptions().map_entry else None


def message_reader(message: "Descriptor", payload_of: Callable[[bytes], bytes] | None = None) -> Read:
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    message_class, name = GetMessageClass(message), message.full_name
    as_row = _rows(message)

    def read(value: bytes) -> Any:
        if payload_of is not None:
            value = payload_of(value)
        try:
            found = message_class.FromString(value)
            if not found.IsInitialized():
                raise DoesNotDecode(f"not Protobuf of {name}: a required field is missing")
            return as_row(found)
        except (DecodeError, UnicodeDecodeError) as error:
            raise DoesNotDecode(f"not Protobuf of {name}: {error}") from error

    return read


def _rows(message: "Descriptor") -> Value:
    """Returns a function from a message to its row. Conversions of fields are selected once."""
    values = [(one.name, _value_of(one)) for one in message.fields]
    return lambda found: {name: value(found) for name, value in values}


def _value_of(field: "FieldDescriptor") -> Value:
    """Returns a function from a message to the value of this field in the row."""
    name = field.name
    entry = _map_entry(field)
    if entry is not None:
        key, item = (_converted(one) for one in entry.fields)
        return lambda found: {key(one): item(value) for one, value in getattr(found, name).items()}
    convert = _converted(field)
    if field.is_repeated:
        return lambda found: [convert(value) for value in getattr(found, name)]
    if field.has_presence:
        return lambda found: convert(getattr(found, name)) if found.HasField(name) else None
    return lambda found: convert(getattr(found, name))


def _converted(field: "FieldDescriptor") -> Value:
    """Returns the conversion of a single value of the field."""
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value) or str(value)
    if field.cpp_type == field.CPPTYPE_UINT64:
        return Decimal
    if field.message_type is None:
        return lambda value: value
    if field.message_type.full_name == _TIMESTAMP:
        return _nanoseconds
    return _rows(field.message_type)


def _nanoseconds(value: Any) -> int:
    if not 0 <= value.nanos < _NANOSECONDS:
        raise DoesNotDecode(f"a {_TIMESTAMP} of {value.nanos} nanoseconds, which are not 0 to 999999999")
    return int(value.seconds) * _NANOSECONDS + int(value.nanos)
