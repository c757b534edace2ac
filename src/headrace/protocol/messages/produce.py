"""Produce, versions 3 to 13: batches stay views into the received frame, never Python objects.

A decoded request is valid only as long as its frame: the caller appends the batches before it reads more data.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias
from uuid import UUID

from headrace.model.errors import ErrorCode
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.frames import Part, response_start
from headrace.protocol.primitives import INT32, Reader, array_length, nullable_string, string, uvarint

TOPIC_IDS_FROM = 13
LOG_START_FROM = 5
RECORD_ERRORS_FROM = 8
CURRENT_LEADER_FROM = 10
# from here on clients do not send AddPartitionsToTxn: Produce adds the partitions to their transaction
ADDS_PARTITIONS_FROM = 12
FLEXIBLE_FROM = SERVED[ApiKey.PRODUCE].first_flexible

# Smallest encoded size of an element, so that no count can exceed the frame.
_TOPIC_BYTES_MIN = 2
_PARTITION_BYTES_MIN = 5

_ROW = Struct(">ihqqq")
_ROW_WITHOUT_LOG_START = Struct(">ihqq")
_LEADER = Struct(">ii")
_ACKS_AND_TIMEOUT = Struct(">hi")


PartitionData: TypeAlias = tuple[int, memoryview | None]  # index and batch
TopicData: TypeAlias = tuple[str | UUID, list[PartitionData]]


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicData]


class PartitionResult(NamedTuple):
    partition: int
    error: int = ErrorCode.NONE
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str], ...] = ()
    message: str | None = None
    current_leader: tuple[int, int] | None = None  # id and epoch, in the response of a broker that is not the leader


def decode_request(reader: Reader, version: int) -> ProduceRequest:
    transactional_id = reader.nullable_string()
    acks, timeout_ms = reader.numbers(_ACKS_AND_TIMEOUT)
    flexible = reader.flexible
    topics = []
    for _ in reader.array(_TOPIC_BYTES_MIN):
        topic: str | UUID = reader.uuid() if version >= TOPIC_IDS_FROM else reader.string()
        partitions = []
        for _ in reader.array(_PARTITION_BYTES_MIN):
            partitions.append((reader.int32(), reader.nullable_bytes()))
            if flexible:
                reader.skip_tags()
        reader.skip_tags()
        topics.append((topic, partitions))
    reader.skip_tags()
    reader.expect_end()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str | UUID, Sequence[PartitionResult]]],
    throttle_ms: int = 0,
) -> list[Part]:
    flexible = version >= FLEXIBLE_FROM
    body = bytearray(array_length(len(topics), flexible))
    for topic, results in topics:
        body += topic.bytes if isinstance(topic, UUID) else string(topic, flexible)
        body += array_length(len(results), flexible)
        for result in results:
            _encode_result(body, result, version, flexible)
        if flexible:
            body.append(0)
    body += INT32.pack(throttle_ms)
    if flexible:
        body.append(0)
    return [response_start(ApiKey.PRODUCE, version, correlation_id, len(body)) + body]


def row_at(version: int, topic: str | UUID) -> int:
    """Returns the position of the first row of the first topic in a response."""
    flexible = version >= FLEXIBLE_FROM
    name = topic.bytes if isinstance(topic, UUID) else string(topic, flexible)
    return len(response_start(ApiKey.PRODUCE, version, 0, 0)) + 2 * len(array_length(1, flexible)) + len(name)


def _encode_result(body: bytearray, result: PartitionResult, version: int, flexible: bool) -> None:
    index, error, base_offset, append_time_ms, log_start_offset, record_errors, message, leader = result
    if version >= LOG_START_FROM:
        body += _ROW.pack(index, error, base_offset, append_time_ms, log_start_offset)
    else:
        body += _ROW_WITHOUT_LOG_START.pack(index, error, base_offset, append_time_ms)
    if version >= RECORD_ERRORS_FROM:
        body += array_length(len(record_errors), flexible)
        for batch_index, reason in record_errors:
            body += INT32.pack(batch_index) + nullable_string(reason, flexible)
            if flexible:
                body.append(0)
        body += nullable_string(message, flexible)
    if flexible:
        body += leader_tag(0, leader) if version >= CURRENT_LEADER_FROM else b"\x00"


def leader_tag(tag: int, leader: tuple[int, int] | None) -> bytes:
    """Encodes the tagged fields of a row: the current leader, or no field."""
    if leader is None:
        return b"\x00"
    value = _LEADER.pack(*leader) + b"\x00"
    return b"\x01" + uvarint(tag) + uvarint(len(value)) + value
