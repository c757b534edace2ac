"""Protobuf values: a .proto as Spark types, and a decoder for Python workers."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.model.errors import InvalidConfig
from headrace.spark.pipeline.problems import SchemaMistake
from headrace.spark.pipeline.registry import PROTOBUF
from headrace.spark.pipeline.row_decoder import Decode, DoesNotDecode, with_decoded_row
from headrace.spark.pipeline.wire_format import HEAD_BYTES, Writers, schema_id_of, split_indexes

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message
    from pyspark.sql import DataFrame

_TIMESTAMP = "google.protobuf.Timestamp"
_FILE = "pipeline.proto"
_PLACE = re.compile(rf"(?:^|/){re.escape(_FILE)}:(\d+):\d+: (.*)$", re.MULTILINE)


def with_protobuf_row(
    compiled: bytes, message: "Descriptor", registry_url: str | None, renamed: "DataFrame"
) -> "DataFrame":
    name = message.full_name  # a descriptor cannot be pickled
    row_type = ", ".join(f"`{one.name}` {_field_type(one, ())}" for one in message.fields)
    return with_decoded_row(renamed, row_type, lambda: _decoder(compiled, name, registry_url))


@lru_cache(maxsize=64)  # of a registry's schemas: Spark's workers outlive their tasks
def compile_proto(text: str) -> bytes:
    """The descriptors of a .proto and of what it imports, serialized.

    By a process of its own: what the compiler has to say, it says to the standard error of the process it runs in.
    """
    import grpc_tools

    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _FILE).write_text(text, encoding="utf-8")
        out = Path(folder) / "out"
        words = [f"-I{folder}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={out}", _FILE]
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *words], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise _mistake(done.stderr)
        return out.read_bytes()


def _mistake(said: str) -> SchemaMistake:
    place = _PLACE.search(said)
    if place is None:
        return SchemaMistake(f"the .proto does not compile: {said.strip()}")
    return SchemaMistake(f"the .proto does not compile: {place[2]}", int(place[1]))


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
    if not names:
        raise InvalidConfig("the .proto has no message")
    short = (name or names[0]).removeprefix(f"{ours.package}.")
    try:
        return pool.FindMessageTypeByName(f"{ours.package}.{short}" if ours.package else short)
    except KeyError:
        raise InvalidConfig(f"the .proto has no message {name!r}; it has {', '.join(names)}") from None


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


def message_at(compiled: bytes, indexes: tuple[int, ...]) -> str:
    """The full name of the message at this place of a file: the n-th, and within that the m-th, and so on."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    file = FileDescriptorSet.FromString(compiled).file[-1]
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise DoesNotDecode(f"the schema behind the id has no message at {list(indexes)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _decoder(compiled: bytes, name: str, registry_url: str | None) -> Decode:
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    message_class = GetMessageClass(find_message(compiled, name))
    payload_of = _payloads(name, registry_url) if registry_url is not None else _as_it_is

    def decode(value: bytes) -> dict[str, Any]:
        try:
            return _as_row(message_class.FromString(payload_of(value)))
        except (DecodeError, UnicodeDecodeError) as error:
            raise DoesNotDecode(f"not Protobuf of {name}: {error}") from error

    return decode


def _as_it_is(value: bytes) -> bytes:
    return value


def _payloads(name: str, registry_url: str) -> Callable[[bytes], bytes]:
    """Of the wire format. Bytes of one message are often good bytes of another, so what they are is looked up."""
    writers = Writers(registry_url, PROTOBUF, compile_proto)
    names: dict[tuple[int, tuple[int, ...]], str] = {}

    def payload_of(value: bytes) -> bytes:
        schema_id = schema_id_of(value)
        compiled = writers.of(schema_id)
        indexes, payload = split_indexes(value[HEAD_BYTES:])
        if (schema_id, indexes) not in names:
            names[schema_id, indexes] = message_at(compiled, indexes)
        if names[schema_id, indexes] != name:
            raise DoesNotDecode(f"a message {names[schema_id, indexes]}, not {name}")
        return payload

    return payload_of


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
