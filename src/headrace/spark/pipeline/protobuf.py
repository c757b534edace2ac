"""Protobuf values: a .proto as Spark types, and a decoder for Python workers."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.model.errors import InvalidConfig
from headrace.spark.pipeline.registry import Registry
from headrace.spark.pipeline.row_decoder import Decode, DoesNotDecode, split_wire_format, with_decoded_row
from headrace.spark.pipeline.spec import Decoding

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message
    from pyspark.sql import DataFrame

_TIMESTAMP = "google.protobuf.Timestamp"
_FILE = "pipeline.proto"


def with_protobuf_row(decoding: Decoding, renamed: "DataFrame", subject: str | None = None) -> "DataFrame":
    text = decoding.schema
    if text is None:
        assert decoding.registry is not None, "a file without either is refused"
        text = Registry(decoding.registry).newest(subject or decoding.options.get("subject", ""))
    compiled = compile_proto(text)
    descriptor = find_message(compiled, decoding.message)
    name, has_ids = descriptor.full_name, decoding.registry is not None
    row_type = ", ".join(f"`{one.name}` {_field_type(one, ())}" for one in descriptor.fields)
    return with_decoded_row(renamed, row_type, lambda: _decoder(compiled, name, has_ids=has_ids))


def compile_proto(text: str) -> bytes:
    """The descriptors of a .proto and of what it imports, serialized: a worker needs no compiler."""
    from grpc_tools import protoc

    well_known = Path(protoc.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _FILE).write_text(text, encoding="utf-8")
        out = Path(folder) / "out"
        arguments = ["protoc", f"-I{folder}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={out}"]
        if protoc.main([*arguments, _FILE]) != 0:
            raise InvalidConfig("the .proto does not compile; protoc has said why above")
        return out.read_bytes()


def find_message(compiled: bytes, name: str | None) -> "Descriptor":
    """By its name, with or without its package; without a name the first of the file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    files = FileDescriptorSet.FromString(compiled).file
    for file in files:
        pool.Add(file)
    ours = files[-1]
    names = [message.name for message in ours.message_type]
    short = (name or names[0]).removeprefix(f"{ours.package}.")
    if short.split(".")[0] not in names:
        raise InvalidConfig(f"the .proto has no message {name!r}; it has {', '.join(names)}")
    return pool.FindMessageTypeByName(f"{ours.package}.{short}" if ours.package else short)


def _field_type(field: "FieldDescriptor", inside: tuple[str, ...]) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return f"map<{_single_type(key, inside)}, {_single_type(value, inside)}>"
    single = _single_type(field, inside)
    return f"array<{single}>" if field.is_repeated else single


def _single_type(field: "FieldDescriptor", inside: tuple[str, ...]) -> str:
    names = {
        field.CPPTYPE_BOOL: "boolean",
        field.CPPTYPE_INT32: "int",
        field.CPPTYPE_INT64: "bigint",
        field.CPPTYPE_UINT32: "bigint",
        field.CPPTYPE_UINT64: "decimal(20,0)",
        field.CPPTYPE_FLOAT: "float",
        field.CPPTYPE_DOUBLE: "double",
        field.CPPTYPE_ENUM: "string",
    }
    if field.cpp_type in names:
        return names[field.cpp_type]
    if field.message_type is None:
        return "binary" if field.type == field.TYPE_BYTES else "string"
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return "timestamp"
    if name in inside:
        raise InvalidConfig(f"message {name} contains itself; Spark has no recursive types")
    fields = (f"`{one.name}`: {_field_type(one, (*inside, name))}" for one in field.message_type.fields)
    return f"struct<{', '.join(fields)}>"


def _decoder(compiled: bytes, name: str, *, has_ids: bool) -> Decode:
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    message_class = GetMessageClass(find_message(compiled, name))

    def decode(value: bytes) -> dict[str, Any]:
        payload = _without_indexes(split_wire_format(value)[1]) if has_ids else value
        try:
            return _as_row(message_class.FromString(payload))
        except (DecodeError, UnicodeDecodeError) as error:
            raise DoesNotDecode(f"not Protobuf of {name}: {error}") from error

    return decode


def _without_indexes(payload: bytes) -> bytes:
    """Behind the schema id stands which message of the file it is: a count and as many zigzag numbers."""
    count, at = _varint(payload, 0)
    for _ in range(count >> 1):
        _, at = _varint(payload, at)
    return payload[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise DoesNotDecode("the message indexes behind the schema id are cut short")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def _as_row(message: "Message") -> dict[str, Any]:
    fields: Iterable[Any] = message.DESCRIPTOR.fields  # two classes, in Python and in C, with the same attributes
    return {field.name: _field_value(message, field) for field in fields}


def _field_value(message: "Message", field: "FieldDescriptor") -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        return [(key, _single_value(one, of)) for key, one in value.items()]
    if field.is_repeated:
        return [_single_value(one, field) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single_value(value, field)


def _single_value(value: Any, field: "FieldDescriptor") -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    if field.cpp_type == field.CPPTYPE_UINT64:
        from decimal import Decimal

        return Decimal(value)
    if field.message_type is None:
        return value
    if field.message_type.full_name == _TIMESTAMP:
        from datetime import UTC

        return value.ToDatetime(tzinfo=UTC)
    return _as_row(value)
