"""OffsetCommit, versions 2 to 10: the most frequent request of consumers after Fetch. Version 10 has topic ids."""

from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from headrace.model.ids import NO_EPOCH
from headrace.protocol.bounded_reader import (
    FIELD_WEIGHT,
    INT_WEIGHT,
    OBJECT_WEIGHT,
    POINTER_WEIGHT,
    UUID_WEIGHT,
    BoundedReader,
)
from headrace.protocol.primitives import INT32, Reader, array_length, string

THROTTLE_FROM = 3
RETENTION_BEFORE = 5
LEADER_EPOCH_FROM = 6
INSTANCE_FROM = 7
FLEXIBLE_FROM = 8
TOPIC_ID_FROM = 10

NO_RETENTION = -1

_TOPIC_BYTES_MIN = 2
_PARTITION_BYTES_MIN = 13
_TOPIC_WEIGHT = POINTER_WEIGHT + OBJECT_WEIGHT + 2 * FIELD_WEIGHT + UUID_WEIGHT
_PARTITION_WEIGHT = POINTER_WEIGHT + OBJECT_WEIGHT + 4 * FIELD_WEIGHT + 3 * INT_WEIGHT

_OFFSET = Struct(">iqi")
_OFFSET_WITHOUT_EPOCH = Struct(">iq")
_ROW = Struct(">ih")


# What a NamedTuple's own constructor calls, in half its time: a broker decodes ten thousand of these a second.
_new_tuple = tuple.__new__


class PartitionCommit(NamedTuple):
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


class TopicCommit(NamedTuple):
    topic: str | UUID
    partitions: tuple[PartitionCommit, ...]


class OffsetCommitRequest(NamedTuple):
    group_id: str
    generation: int  # or the member's epoch
    member_id: str
    instance_id: str | None
    retention_ms: int
    topics: tuple[TopicCommit, ...]


class TopicRows(NamedTuple):
    topic: str | UUID
    rows: Sequence[tuple[int, int]]  # partition, error


class OffsetCommitResponse(NamedTuple):
    topics: Sequence[TopicRows]
    throttle_ms: int = 0


def decode_request(body: Reader, version: int) -> OffsetCommitRequest:
    reader = BoundedReader.of_body(body)
    group_id, generation, member_id = reader.string(), reader.int32(), reader.string()
    instance_id = reader.nullable_string() if version >= INSTANCE_FROM else None
    retention_ms = reader.int64() if version < RETENTION_BEFORE else NO_RETENTION
    topics = tuple([_topic(reader, version) for _ in reader.elements(_TOPIC_BYTES_MIN, _TOPIC_WEIGHT)])
    reader.skip_tags()
    reader.expect_end()
    return _new_tuple(OffsetCommitRequest, (group_id, generation, member_id, instance_id, retention_ms, topics))


def _topic(reader: BoundedReader, version: int) -> TopicCommit:
    topic = reader.uuid() if version >= TOPIC_ID_FROM else reader.string()
    indexes = reader.elements(_PARTITION_BYTES_MIN, _PARTITION_WEIGHT)
    partitions = tuple([_partition(reader, version) for _ in indexes])
    reader.skip_tags()
    return _new_tuple(TopicCommit, (topic, partitions))


def _partition(reader: BoundedReader, version: int) -> PartitionCommit:
    if version >= LEADER_EPOCH_FROM:
        partition, offset, leader_epoch = reader.numbers(_OFFSET)
    else:
        partition, offset = reader.numbers(_OFFSET_WITHOUT_EPOCH)
        leader_epoch = NO_EPOCH
    metadata = reader.nullable_string()
    reader.skip_tags()
    return _new_tuple(PartitionCommit, (partition, offset, leader_epoch, metadata))


def count_errors(version: int, response: OffsetCommitResponse, counts: Counter[int]) -> None:
    for topic in response.topics:
        for _, error in topic.rows:
            if error:
                counts[error] += 1


def encode_response(version: int, response: OffsetCommitResponse) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    end = b"\x00" if flexible else b""
    parts = [INT32.pack(response.throttle_ms)] if version >= THROTTLE_FROM else []
    parts.append(array_length(len(response.topics), flexible))
    for topic, rows in response.topics:
        parts.append(topic.bytes if isinstance(topic, UUID) else string(topic, flexible))
        parts.append(array_length(len(rows), flexible))
        parts += [_ROW.pack(*row) + end for row in rows]
        parts.append(end)
    parts.append(end)
    return b"".join(parts)
