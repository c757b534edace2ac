"""Writes docs/reference/grpc.md from the comments of the .proto file.

python scripts/grpc_reference.py > docs/reference/grpc.md
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2 as descriptors
from grpc_tools import protoc

SOURCE = Path(__file__).resolve().parents[1] / "src"
PROTO = SOURCE / "headrace" / "rpc" / "headrace.proto"
INTRODUCTION = """\
# gRPC reference

Made from `src/headrace/rpc/headrace.proto` by `make docs`; do not edit. The [guide](../guides/grpc.md) shows how to
begin. Port 9090, package `headrace.v1`; health and reflection are served too.

A call that fails has a status code and a `google.rpc.ErrorInfo` in its details: `reason` is the name of Kafka's error,
`kafka_code` its number, `retriable` says whether the same call may succeed later; where it may, a
`google.rpc.RetryInfo` says when.
"""
_NAMES = {number: name.removeprefix("TYPE_").lower() for name, number in descriptors.FieldDescriptorProto.Type.items()}
_MESSAGE, _ENUM, _SERVICE = 4, 5, 6
_FIELD, _METHOD, _VALUE = 2, 2, 2
_REPEATED = descriptors.FieldDescriptorProto.LABEL_REPEATED


def compiled() -> descriptors.FileDescriptorProto:
    with tempfile.NamedTemporaryFile() as made:
        words = ["protoc", f"-I{SOURCE}", "--include_source_info", f"--descriptor_set_out={made.name}", str(PROTO)]
        if protoc.main(words):
            sys.exit("protoc failed")
        return descriptors.FileDescriptorSet.FromString(made.read()).file[0]


class Page:
    def __init__(self, file: descriptors.FileDescriptorProto) -> None:
        self._file = file
        self._comments = {tuple(one.path): one.leading_comments for one in file.source_code_info.location}

    def _said(self, *path: int) -> str:
        lines = self._comments.get(path, "").splitlines()
        return " ".join(line.strip() for line in lines if not line.strip().startswith("----")).strip()

    def lines(self) -> Iterator[str]:
        yield from INTRODUCTION.splitlines()
        for index, service in enumerate(self._file.service):
            yield from self._service(index, service)
        yield from ("", "## Messages")
        for index, message in enumerate(self._file.message_type):
            yield from self._message(index, message)
        yield from ("", "## Enums")
        for index, enum in enumerate(self._file.enum_type):
            yield from self._enum(index, enum)

    def _service(self, at: int, service: descriptors.ServiceDescriptorProto) -> Iterator[str]:
        yield from ("", f"## {service.name}", "", self._said(_SERVICE, at), "", "| call | |", "|---|---|")
        for index, method in enumerate(service.method):
            request, answer = method.input_type.split(".")[-1], method.output_type.split(".")[-1]
            request = f"stream {request}" if method.client_streaming else request
            answer = f"stream {answer}" if method.server_streaming else answer
            yield f"| `{method.name}({request})` → `{answer}` | {self._said(_SERVICE, at, _METHOD, index)} |"

    def _message(self, at: int, message: descriptors.DescriptorProto) -> Iterator[str]:
        said = self._said(_MESSAGE, at)
        yield from ("", f"### {message.name}", "")
        if said:
            yield from (said, "")
        if not message.field:
            yield "Empty."
            return
        yield from ("| field | type | |", "|---|---|---|")
        for index, field in enumerate(message.field):
            said = self._said(_MESSAGE, at, _FIELD, index)
            yield f"| `{field.name}` = {field.number} | {self._type(message, field)} | {said} |"

    def _type(self, message: descriptors.DescriptorProto, field: descriptors.FieldDescriptorProto) -> str:
        name = field.type_name.split(".")[-1] or _NAMES[field.type]
        if any(one.name == name and one.options.map_entry for one in message.nested_type):
            return "map of string to string"
        if field.label == _REPEATED:
            return f"repeated {name}"
        return f"optional {name}" if field.proto3_optional else name

    def _enum(self, at: int, enum: descriptors.EnumDescriptorProto) -> Iterator[str]:
        yield from ("", f"### {enum.name}", "", "| value | |", "|---|---|")
        for index, value in enumerate(enum.value):
            yield f"| `{value.name}` = {value.number} | {self._said(_ENUM, at, _VALUE, index)} |"


def main() -> None:
    sys.stdout.write("\n".join(Page(compiled()).lines()) + "\n")


if __name__ == "__main__":
    main()
