"""Any Protobuf value becomes a row or an error, and no record changes what another one becomes.

Messages and values are generated. Values that fit, values of other schemas, and both with bytes changed, cut or added.
"""

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.decoding_rules import STRICT
from headrace.formats.protobuf_reader import message_columns, message_reader
from headrace.formats.row_decoder import RowDecoder
from headrace.spark.pipeline.decode_protobuf import find_message
from tests.unit.formats.any_bytes import EXAMPLES, batches, check_each_alone

TYPES = [
    number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
]


@st.composite
def proto_files(draw: st.DrawFn) -> bytes:
    file = FileDescriptorProto(name="p.proto", package="shop", syntax=draw(st.sampled_from(["proto2", "proto3"])))
    file.dependency.append("google/protobuf/timestamp.proto")
    inner = file.message_type.add(name="Inner")
    enum = file.enum_type.add(name="State")
    enum.value.add(name="NEW", number=0)
    enum.value.add(name="PAID", number=2)
    outer = file.message_type.add(name="Outer")
    for message, kinds in ((inner, ("plain",)), (outer, ("plain", "plain", "Inner", "State", "Timestamp"))):
        for number in range(1, draw(st.integers(2, 5))):
            labels = [1, 3] + [2] * (file.syntax == "proto2")
            field = message.field.add(name=f"f{number}", number=number, label=draw(st.sampled_from(labels)))
            match draw(st.sampled_from(kinds)):
                case "plain":
                    field.type = draw(st.sampled_from(TYPES))
                case "State":
                    field.type, field.type_name = FieldDescriptorProto.TYPE_ENUM, ".shop.State"
                case "Inner":
                    field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, ".shop.Inner"
                case _:
                    field.type = FieldDescriptorProto.TYPE_MESSAGE
                    field.type_name = ".google.protobuf.Timestamp"
    return FileDescriptorSet(file=[timestamp_file(), file]).SerializeToString()


def timestamp_file() -> FileDescriptorProto:
    from google.protobuf import timestamp_pb2

    file = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(file)
    return file


VARINT = st.one_of(st.integers(0, 127), st.integers(0, 2**64 - 1)).map(
    lambda value: bytes((value >> shift & 0x7F) | 0x80 for shift in range(0, 7 * 9, 7)) + bytes([value >> 63])
)
TAGGED = st.one_of(
    st.tuples(st.integers(1, 5), st.just(0), VARINT),
    st.tuples(st.integers(1, 5), st.just(1), st.binary(min_size=8, max_size=8)),
    st.tuples(st.integers(1, 5), st.just(5), st.binary(min_size=4, max_size=4)),
    st.tuples(st.integers(1, 5), st.just(2), st.binary(max_size=12).map(lambda some: bytes([len(some)]) + some)),
).map(lambda field: bytes([field[0] << 3 | field[1]]) + field[2])
PROTO_VALUES = st.lists(TAGGED, max_size=5).map(b"".join)


@EXAMPLES
@given(proto_files(), batches(PROTO_VALUES))
def test_any_protobuf_becomes_a_row_or_an_error(compiled: bytes, values: list[bytes | None]) -> None:
    message = find_message(compiled, "Outer")
    check_each_alone(RowDecoder(message_reader(message), message_columns(message, STRICT)), values)


@pytest.mark.parametrize("nanoseconds", [0, 123_456_000, 999_999_000])
@pytest.mark.parametrize("seconds", [-62135596800, 0, 253402300799])
def test_protobuf_timestamp_in_range_is_a_row(seconds: int, nanoseconds: int) -> None:
    message = find_message(FileDescriptorSet(file=[timestamp_file(), _holder()]).SerializeToString(), "Holder")
    value = GetMessageClass(message)(at={"seconds": seconds, "nanos": nanoseconds}).SerializeToString()
    decoded = RowDecoder(message_reader(message), message_columns(message, STRICT)).decode([value])
    at = decoded.rows.field("at").cast(pa.int64()).to_pylist()
    assert at == [seconds * 10**6 + nanoseconds // 1000]


@pytest.mark.parametrize(
    ("seconds", "nanoseconds"), [(2**62, 0), (-(2**62), 0), (253402300800, 0), (0, -1), (0, 10**9), (0, 1)]
)
def test_protobuf_timestamp_out_of_range_is_an_error(seconds: int, nanoseconds: int) -> None:
    message = find_message(FileDescriptorSet(file=[timestamp_file(), _holder()]).SerializeToString(), "Holder")
    value = GetMessageClass(message)(at={"seconds": seconds, "nanos": nanoseconds}).SerializeToString()
    decoded = RowDecoder(message_reader(message), message_columns(message, STRICT)).decode([b"", value, b""])
    assert decoded.errors.is_valid().to_pylist() == [False, True, False]


def _holder() -> FileDescriptorProto:
    file = FileDescriptorProto(name="h.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    field = file.message_type.add(name="Holder").field.add(name="at", number=1, label=1, type=11)
    field.type_name = ".google.protobuf.Timestamp"
    return file
