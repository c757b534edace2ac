"""Decodes Protobuf values of a source, plain or in the wire format of a schema registry. Compiles the .proto."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.formats.decoding_rules import DecodingRules
from headrace.formats.errors import DoesNotDecode
from headrace.formats.protobuf_reader import message_columns, message_reader
from headrace.formats.row_decoder import RowDecoder
from headrace.formats.schema_registry import PROTOBUF
from headrace.formats.wire_format import HEAD_BYTES, Writers, schema_id_of, split_indexes
from headrace.model.errors import InvalidConfig
from headrace.pipeline.errors import SchemaMistake
from headrace.spark.pipeline.decode import with_decoded_row

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from pyspark.sql import DataFrame

_FILE = "pipeline.proto"
_PLACE = re.compile(rf"(?:^|/){re.escape(_FILE)}:(\d+):\d+: (.*)$", re.MULTILINE)


def with_protobuf_row(
    compiled: bytes, message: "Descriptor", registry_url: str | None, rules: DecodingRules, renamed: "DataFrame"
) -> "DataFrame":
    name = message.full_name  # descriptors cannot be pickled
    row_type = message_columns(message, rules).type

    def make_decoder() -> RowDecoder:
        return protobuf_decoder(compiled, name, registry_url, rules)

    return with_decoded_row(renamed, row_type, make_decoder)


@lru_cache(maxsize=64)  # for the schemas of a registry: Spark's workers outlive their tasks
def compile_proto(text: str) -> bytes:
    """Returns the serialized descriptors of a .proto and its imports.

    Runs the compiler in a process of its own, because it writes its messages to the standard error of its process.
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
    """Finds a message by its name, with or without package; without a name returns the first of the file."""
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


def message_at(compiled: bytes, indexes: tuple[int, ...]) -> str:
    """Returns the full name of the message at these indexes: the n-th of the file, within it the m-th, and so on."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    file = FileDescriptorSet.FromString(compiled).file[-1]
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise DoesNotDecode(f"the schema behind the id has no message at {list(indexes)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def protobuf_decoder(compiled: bytes, name: str, registry_url: str | None, rules: DecodingRules) -> RowDecoder:
    message = find_message(compiled, name)
    payload_of = _payloads(message.full_name, registry_url) if registry_url is not None else None
    return RowDecoder(
        message_reader(message, payload_of), message_columns(message, rules), null_values=rules.tombstone_error
    )


def _payloads(name: str, registry_url: str) -> Callable[[bytes], bytes]:
    """Returns a function that extracts the payload of the wire format. It looks up the message type of each value,
    because bytes of one type often parse as another.
    """
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
