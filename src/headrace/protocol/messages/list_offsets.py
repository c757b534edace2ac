"""ListOffsets, versions 1 to 11: sent by consumers before their first fetch."""

from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from headrace.model.errors import ErrorCode
from headrace.model.ids import NO_EPOCH
from headrace.protocol.bounded_reader import FIELD_WEIGHT, INT_WEIGHT, OBJECT_WEIGHT, POINTER_WEIGHT, BoundedReader
from headrace.protocol.primitives import INT32, Reader, array_length, string

ISOLATION_FROM = 2
LEADER_EPOCH_FROM = 4
FLEXIBLE_FROM = 6
TIMEOUT_FROM = 10

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The first version of each special timestamp; older requests with it are rejected.
SPECIAL_TIMES_FROM = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}

CONSUMER = -1  # the replica id of clients
DEBUGGING = -2

_TOPIC_BYTES_MIN = 2
_PARTITION_BYTES_MIN = 12
_PARTITION_WEIGHT = POINTER_WEIGHT + OBJECT_WEIGHT + 3 * (FIELD_WEIGHT + INT_WEIGHT)
_TOPIC_WEIGHT = POINTER_WEIGHT + OBJECT_WEIGHT + 2 * FIELD_WEIGHT

_QUERY = Struct(">iiq")
_QUERY_WITHOUT_EPOCH = Struct(">iq")
_ROW = Struct(">ihqqi")
_ROW_WITHOUT_EPOCH = Struct(">ihqq")


class PartitionQuery(NamedTuple):
    partition: int
    current_leader_epoch: int
    timestamp: int


class TopicQuery(NamedTuple):
    name: str
    partitions: tuple[PartitionQuery, ...]


class ListOffsetsRequest(NamedTuple):
    replica_id: int
    read_committed: bool
    topics: tuple[TopicQuery, ...]
    timeout_ms: int = 0


class PartitionAnswer(NamedTuple):
    partition: int
    error: int = ErrorCode.NONE
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = NO_EPOCH


class ListOffsetsResponse(NamedTuple):
    topics: Sequence[tuple[str, Sequence[PartitionAnswer]]]
    throttle_ms: int = 0


def decode_request(body: Reader, version: int) -> ListOffsetsRequest:
    reader = BoundedReader.of_body(body)
    replica_id = reader.int32()
    read_committed = reader.int8() == 1 if version >= ISOLATION_FROM else False
    indexes = reader.elements(_TOPIC_BYTES_MIN, _TOPIC_WEIGHT)
    topics = tuple([_decode_topic(reader, version) for _ in indexes])
    timeout_ms = reader.int32() if version >= TIMEOUT_FROM else 0
    reader.skip_tags()
    reader.expect_end()
    return ListOffsetsRequest(replica_id, read_committed, topics, timeout_ms)


def _decode_topic(reader: BoundedReader, version: int) -> TopicQuery:
    name = reader.string()
    indexes = reader.elements(_PARTITION_BYTES_MIN, _PARTITION_WEIGHT)
    partitions = tuple([_decode_partition(reader, version) for _ in indexes])
    reader.skip_tags()
    return TopicQuery(name, partitions)


def _decode_partition(reader: BoundedReader, version: int) -> PartitionQuery:
    if version >= LEADER_EPOCH_FROM:
        query = PartitionQuery._make(_QUERY.unpack(reader.take(_QUERY.size)))
    else:
        partition, timestamp = _QUERY_WITHOUT_EPOCH.unpack(reader.take(_QUERY_WITHOUT_EPOCH.size))
        query = PartitionQuery(partition, NO_EPOCH, timestamp)
    reader.skip_tags()
    return query


def count_errors(version: int, response: ListOffsetsResponse, counts: Counter[int]) -> None:
    for _, answers in response.topics:
        for answer in answers:
            if answer.error:
                counts[answer.error] += 1


def encode_response(version: int, response: ListOffsetsResponse) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    end = b"\x00" if flexible else b""
    parts = [INT32.pack(response.throttle_ms)] if version >= ISOLATION_FROM else []
    parts.append(array_length(len(response.topics), flexible))
    for name, answers in response.topics:
        parts.append(string(name, flexible) + array_length(len(answers), flexible))
        if version >= LEADER_EPOCH_FROM:
            parts += [_ROW.pack(*answer) + end for answer in answers]
        else:
            parts += [_ROW_WITHOUT_EPOCH.pack(*answer[:4]) + end for answer in answers]
        parts.append(end)
    parts.append(end)
    return b"".join(parts)
