"""The hand-written Fetch codec agrees with kio's, and counts its bytes right around records it never reads."""

import datetime
import io
from dataclasses import fields
from importlib import import_module
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from headrace.model.errors import ProtocolError
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.frames import response_start
from headrace.protocol.messages.fetch import AbortedTransaction, PartitionRow, decode_request, encode_response
from headrace.protocol.primitives import Reader

VERSIONS = range(SERVED[ApiKey.FETCH].lowest, SERVED[ApiKey.FETCH].highest + 1)
TOPIC_ID = UUID("01234567-89ab-cdef-0123-456789abcdef")


class Slice(NamedTuple):
    """Stands for records in a file."""

    length: int


def reader_of(data: bytes, version: int) -> Reader:
    return Reader(memoryview(data), flexible=version >= SERVED[ApiKey.FETCH].first_flexible)


def known(entity: Any, **values: Any) -> Any:
    """The entity of some version, with the values that this version has fields for."""
    names = {field.name for field in fields(entity)}
    return entity(**{name: value for name, value in values.items() if name in names})


def request_bytes(version: int) -> bytes:
    kio = import_module(f"kio.schema.fetch.v{version}.request")
    partition = known(
        kio.FetchPartition,
        partition=i32(2),
        current_leader_epoch=i32(6),
        fetch_offset=i64(100),
        last_fetched_epoch=i32(5),
        log_start_offset=i64(-1),
        partition_max_bytes=i32(1_000),
    )
    topic = known(kio.FetchTopic, topic="orders", topic_id=TOPIC_ID, partitions=(partition,))
    extra: dict[str, Any] = {}
    if version >= 7:
        forgotten = known(kio.ForgottenTopic, topic="old", topic_id=TOPIC_ID, partitions=(i32(1), i32(4)))
        extra = {"session_id": i32(9), "session_epoch": i32(3), "forgotten_topics_data": (forgotten,)}
    request = known(
        kio.FetchRequest,
        replica_id=i32(-1),
        max_wait=i32Timedelta.parse(datetime.timedelta(milliseconds=500)),
        min_bytes=i32(1),
        max_bytes=i32(50_000),
        isolation_level=i8(1),
        topics=(topic,),
        rack_id="r1",
        **extra,
    )
    buffer = io.BytesIO()
    entity_writer(kio.FetchRequest)(buffer, request)
    return buffer.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_written_by_kio_is_read(version: int) -> None:
    request = decode_request(reader_of(request_bytes(version), version), version)
    assert (request.replica_id, request.max_wait_ms, request.bytes_min, request.bytes_max) == (-1, 500, 1, 50_000)
    assert request.read_committed
    ((topic, (partition,)),) = request.topics
    assert topic == (TOPIC_ID if version >= 13 else "orders")
    assert (partition.partition, partition.fetch_offset, partition.bytes_max) == (2, 100, 1_000)
    assert partition.current_leader_epoch == (6 if version >= 9 else -1)
    if version >= 7:
        assert (request.session_id, request.session_epoch) == (9, 3)
        assert [indexes for _, indexes in request.forgotten] == [[1, 4]]
    assert request.rack == ("r1" if version >= 11 else "")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shorter_request_is_a_protocol_error(version: int) -> None:
    whole = request_bytes(version)
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode_request(reader_of(whole[:size], version), version)


def test_a_million_partitions_announced_in_a_short_frame_are_not_believed() -> None:
    whole = bytearray(request_bytes(4))
    count_at = 4 + 4 + 4 + 4 + 1
    whole[count_at : count_at + 4] = (1_000_000).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="1000000 elements announced"):
        decode_request(reader_of(bytes(whole), 4), 4)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_is_read_by_kio(version: int) -> None:
    topic = TOPIC_ID if version >= 13 else "orders"
    full = PartitionRow(2, 0, 120, 110, 5, (AbortedTransaction(8, 101),), records=Slice(11))
    empty = PartitionRow(3, 6, current_leader=(4, 12))
    parts = encode_response(version, 77, [(topic, [full, empty])], session_id=9)
    frame = b"".join(b"batch bytes" if isinstance(part, Slice) else bytes(part) for part in parts)  # type: ignore[arg-type]
    start = response_start(ApiKey.FETCH, version, 77, len(frame) - (9 if version >= 12 else 8))
    assert frame.startswith(start), "the announced size counts the records too"
    kio = import_module(f"kio.schema.fetch.v{version}.response")
    body = frame[len(start) :]
    response, size = entity_reader(kio.FetchResponse)(body, 0)
    assert size == len(body)
    first, second = response.responses[0].partitions
    assert (first.partition_index, first.high_watermark, first.last_stable_offset) == (2, i64(120), i64(110))
    assert bytes(first.records) == b"batch bytes"
    assert [(one.producer_id, one.first_offset) for one in first.aborted_transactions] == [(8, 101)]
    assert second.error_code.value == i16(6)
    assert second.aborted_transactions is None
    if version >= 7:
        assert response.session_id == 9
    if version >= 12:
        assert (second.current_leader.leader_id, second.current_leader.leader_epoch) == (4, 12)
