"""The hand-written Produce codec agrees with kio's, which is generated from Kafka's own definitions."""

import io
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i64

from headrace.model.errors import ProtocolError
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.frames import response_start
from headrace.protocol.messages.produce import PartitionResult, decode_request, encode_response
from headrace.protocol.primitives import Reader

VERSIONS = range(SERVED[ApiKey.PRODUCE].lowest, SERVED[ApiKey.PRODUCE].highest + 1)
TOPIC_ID = UUID("01234567-89ab-cdef-0123-456789abcdef")


def reader_of(data: bytes, version: int) -> Reader:
    return Reader(memoryview(bytearray(data)), flexible=version >= SERVED[ApiKey.PRODUCE].first_flexible)


def request_bytes(version: int) -> bytes:
    kio = import_module(f"kio.schema.produce.v{version}.request")
    topic: dict[str, Any] = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "orders"}
    data = kio.TopicProduceData(
        **topic,
        partition_data=(
            kio.PartitionProduceData(index=i32(3), records=b"batch bytes"),
            kio.PartitionProduceData(index=i32(4), records=None),
        ),
    )
    buffer = io.BytesIO()
    import datetime

    from kio.static.primitive import i32Timedelta

    request = kio.ProduceRequest(
        transactional_id=None,
        acks=i16(-1),
        timeout=i32Timedelta.parse(datetime.timedelta(milliseconds=1500)),
        topic_data=(data,),
    )
    entity_writer(kio.ProduceRequest)(buffer, request)
    return buffer.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_written_by_kio_is_read(version: int) -> None:
    request = decode_request(reader_of(request_bytes(version), version), version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, -1, 1500)
    ((topic, partitions),) = request.topics
    assert topic == (TOPIC_ID if version >= 13 else "orders")
    assert [(index, None if records is None else bytes(records)) for index, records in partitions] == [
        (3, b"batch bytes"),
        (4, None),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shorter_request_is_a_protocol_error(version: int) -> None:
    whole = request_bytes(version)
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode_request(reader_of(whole[:size], version), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_is_read_by_kio(version: int) -> None:
    topic = TOPIC_ID if version >= 13 else "orders"
    good = PartitionResult(3, 0, 42, 1_700_000_000_000, 7)
    bad = PartitionResult(4, 87, record_errors=((1, "no key"),), message="keys are missing", current_leader=(2, 9))
    (frame,) = encode_response(version, 77, [(topic, [good, bad])], throttle_ms=5)
    assert isinstance(frame, bytes)
    start = response_start(ApiKey.PRODUCE, version, 77, len(frame) - (9 if version >= 9 else 8))
    assert frame.startswith(start)
    kio = import_module(f"kio.schema.produce.v{version}.response")
    body = frame[len(start) :]
    response, size = entity_reader(kio.ProduceResponse)(body, 0)
    assert size == len(body)
    (row,) = response.responses
    first, second = row.partition_responses
    assert (first.index, first.error_code.value, first.base_offset) == (3, 0, i64(42))
    assert second.error_code.value == 87
    if version >= 5:
        assert first.log_start_offset == 7
    if version >= 8:
        assert [(one.batch_index, one.batch_index_error_message) for one in second.record_errors] == [(1, "no key")]
        assert second.error_message == "keys are missing"
    if version >= 10:
        assert (second.current_leader.leader_id, second.current_leader.leader_epoch) == (2, 9)
