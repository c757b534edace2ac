"""OffsetFetch, versions 1 to 10: since 8 for many groups at once, since 10 with topic ids."""

from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import ErrorCode
from headrace.model.ids import NO_EPOCH
from headrace.protocol.bounded_reader import (
    FIELD_WEIGHT,
    INT_WEIGHT,
    OBJECT_WEIGHT,
    POINTER_WEIGHT,
    UUID_WEIGHT,
    BoundedReader,
)
from headrace.protocol.primitives import INT16, INT32, Reader, array_length, nullable_string, string

GROUP_ERROR_FROM = 2
THROTTLE_FROM = 3
LEADER_EPOCH_FROM = 5
FLEXIBLE_FROM = 6
REQUIRE_STABLE_FROM = 7
MANY_GROUPS_FROM = 8
MEMBER_FROM = 9
TOPIC_ID_FROM = 10

NO_OFFSET = -1

_TOPIC_BYTES_MIN = 2
_GROUP_BYTES_MIN = 2
_TOPIC_WEIGHT = POINTER_WEIGHT + OBJECT_WEIGHT + 2 * FIELD_WEIGHT + UUID_WEIGHT
_GROUP_WEIGHT = POINTER_WEIGHT + OBJECT_WEIGHT + 4 * FIELD_WEIGHT + INT_WEIGHT

_OFFSET = Struct(">iqi")
_OFFSET_WITHOUT_EPOCH = Struct(">iq")


class TopicOffsetsQuery(NamedTuple):
    topic: str | UUID
    partitions: tuple[int, ...]


class GroupOffsetsQuery(NamedTuple):
    group_id: str
    member_id: str | None
    member_epoch: int
    topics: tuple[TopicOffsetsQuery, ...] | None  # None: all offsets that the group has committed


class OffsetFetchRequest(NamedTuple):
    groups: tuple[GroupOffsetsQuery, ...]
    require_stable: bool


class OffsetRow(NamedTuple):
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str | None = ""
    error: int = ErrorCode.NONE


class GroupRow(NamedTuple):
    group_id: str
    topics: Sequence[tuple[str | UUID, Sequence[OffsetRow]]] = ()
    error: int = ErrorCode.NONE


class OffsetFetchResponse(NamedTuple):
    groups: Sequence[GroupRow]
    throttle_ms: int = 0


def decode_request(body: Reader, version: int) -> OffsetFetchRequest:
    reader = BoundedReader.of_body(body)
    if version >= MANY_GROUPS_FROM:
        groups = tuple([_group(reader, version) for _ in reader.elements(_GROUP_BYTES_MIN, _GROUP_WEIGHT)])
    else:
        groups = (GroupOffsetsQuery(reader.string(), None, NO_EPOCH, _topics(reader, version)),)
    require_stable = reader.boolean() if version >= REQUIRE_STABLE_FROM else False
    reader.skip_tags()
    reader.expect_end()
    return OffsetFetchRequest(groups, require_stable)


def _group(reader: BoundedReader, version: int) -> GroupOffsetsQuery:
    group_id = reader.string()
    member_id, member_epoch = None, NO_EPOCH
    if version >= MEMBER_FROM:
        member_id, member_epoch = reader.nullable_string(), reader.int32()
    topics = _topics(reader, version)
    reader.skip_tags()
    return GroupOffsetsQuery(group_id, member_id, member_epoch, topics)


def _topics(reader: BoundedReader, version: int) -> tuple[TopicOffsetsQuery, ...] | None:
    indexes = reader.weighed_array(_TOPIC_BYTES_MIN, _TOPIC_WEIGHT)
    return None if indexes is None else tuple([_topic(reader, version) for _ in indexes])


def _topic(reader: BoundedReader, version: int) -> TopicOffsetsQuery:
    topic = reader.uuid() if version >= TOPIC_ID_FROM else reader.string()
    partitions = tuple([reader.int32() for _ in reader.elements(INT32.size, POINTER_WEIGHT + INT_WEIGHT)])
    reader.skip_tags()
    return TopicOffsetsQuery(topic, partitions)


def count_errors(version: int, response: OffsetFetchResponse, counts: Counter[int]) -> None:
    for group in response.groups:
        if group.error and version >= GROUP_ERROR_FROM:
            counts[group.error] += 1
        for _, rows in group.topics:
            for row in rows:
                if row.error:
                    counts[row.error] += 1


def encode_response(version: int, response: OffsetFetchResponse) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    end = b"\x00" if flexible else b""
    parts = [INT32.pack(response.throttle_ms)] if version >= THROTTLE_FROM else []
    if version >= MANY_GROUPS_FROM:
        parts.append(array_length(len(response.groups), flexible))
        for group in response.groups:
            parts.append(string(group.group_id, flexible))
            parts += _encode_topics(group, version, flexible)
            parts.append(INT16.pack(group.error) + end)
    else:
        (group,) = response.groups
        parts += _encode_topics(group, version, flexible)
        if version >= GROUP_ERROR_FROM:
            parts.append(INT16.pack(group.error))
    parts.append(end)
    return b"".join(parts)


def _encode_topics(group: GroupRow, version: int, flexible: bool) -> list[bytes]:
    end = b"\x00" if flexible else b""
    parts = [array_length(len(group.topics), flexible)]
    for topic, rows in group.topics:
        parts.append(topic.bytes if isinstance(topic, UUID) else string(topic, flexible))
        parts.append(array_length(len(rows), flexible))
        for row in rows:
            if version >= LEADER_EPOCH_FROM:
                parts.append(_OFFSET.pack(*row[:3]))
            else:
                parts.append(_OFFSET_WITHOUT_EPOCH.pack(*row[:2]))
            parts.append(nullable_string(row.metadata, flexible) + INT16.pack(row.error) + end)
        parts.append(end)
    return parts
