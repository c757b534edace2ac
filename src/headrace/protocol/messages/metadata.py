"""Metadata, versions 0 to 13: the second message of every client, and the largest response of a broker.

A response is assembled from blocks, one per topic, that the caller caches until the topic changes: encoding 10,000
partitions takes tens of milliseconds, joining their blocks less than one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import ErrorCode, ProtocolError
from headrace.model.ids import ZERO_UUID
from headrace.protocol.bounded_reader import POINTER_WEIGHT, UUID_WEIGHT, BoundedReader
from headrace.protocol.primitives import INT8, INT16, INT32, Reader, array_length, nullable_string, string

CONTROLLER_FROM = 1
CLUSTER_ID_FROM = 2
THROTTLE_FROM = 3
AUTO_CREATE_FROM = 4
OFFLINE_REPLICAS_FROM = 5
LISTENER_NOT_FOUND_FROM = 6
LEADER_EPOCH_FROM = 7
AUTHORIZED_OPERATIONS_FROM = 8
FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 10
CLUSTER_OPERATIONS_UNTIL = 10
BY_ID_FROM = 12
TOP_LEVEL_ERROR_FROM = 13

NO_ERRORS: Mapping[int, int] = {}
OPERATIONS_NOT_ASKED = -(2**31)

_NO_ID = bytes(16)
_NAME_BYTES_MIN = 1
_ID_AND_NAME_BYTES_MIN = 18
# librdkafka requests all topics with a null array of four bytes where the flexible versions have one. Decoded by the
# protocol, its zeros are the null, the flags and the tags, and the actual flags and tags remain.
_LIBRDKAFKA_BYTES_LEFT = 3
_ROW = Struct(">hii")
_ROW_WITH_EPOCH = Struct(">hiii")


class MetadataRequest(NamedTuple):
    topics: tuple[str | UUID, ...] | None  # None: all
    allow_auto_create: bool = True
    include_cluster_operations: bool = False
    include_topic_operations: bool = False


class Node(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionRow(NamedTuple):
    partition: int
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int] = ()
    error: int = ErrorCode.NONE


class MetadataResponse(NamedTuple):
    nodes: Sequence[Node]
    cluster_id: str | None
    controller_id: int
    topic_count: int
    topics: bytes  # blocks of `encode_topic`, in the version of the response, joined
    cluster_operations: int = OPERATIONS_NOT_ASKED
    error: int = ErrorCode.NONE
    throttle_ms: int = 0
    topic_errors: Mapping[int, int] = NO_ERRORS  # how often each error code occurs in the blocks


def decode_request(body: Reader, version: int) -> MetadataRequest:
    reader = BoundedReader.of_body(body)
    topics = _decode_topics(reader, version)
    if version == 0 and topics == ():
        topics = None  # version 0 has no null: an empty list requests all topics
    allow_auto_create = reader.boolean() if version >= AUTO_CREATE_FROM else True
    cluster_operations = topic_operations = False
    if version >= AUTHORIZED_OPERATIONS_FROM:
        if version <= CLUSTER_OPERATIONS_UNTIL:
            cluster_operations = reader.boolean()
        topic_operations = reader.boolean()
    reader.skip_tags()
    if topics is None and reader.remaining == _LIBRDKAFKA_BYTES_LEFT:
        reader.take(_LIBRDKAFKA_BYTES_LEFT)
    reader.expect_end()
    return MetadataRequest(topics, allow_auto_create, cluster_operations, topic_operations)


def _decode_topics(reader: BoundedReader, version: int) -> tuple[str | UUID, ...] | None:
    if version >= TOPIC_IDS_FROM:
        indexes = reader.weighed_array(_ID_AND_NAME_BYTES_MIN, POINTER_WEIGHT + UUID_WEIGHT)
    else:
        indexes = reader.weighed_array(_NAME_BYTES_MIN, POINTER_WEIGHT)
    if indexes is None:
        if version == 0:
            raise ProtocolError("null where an array must be")
        return None
    return tuple([_decode_topic(reader, version) for _ in indexes])


def _decode_topic(reader: BoundedReader, version: int) -> str | UUID:
    if version < TOPIC_IDS_FROM:
        name: str | None = reader.string()
        reader.skip_tags()
    else:
        topic_id = bytes(reader.take(16))
        name = reader.nullable_string()
        reader.skip_tags()
        if topic_id != _NO_ID:
            if version < BY_ID_FROM:
                raise ProtocolError(f"Metadata v{version} does not support topic ids")
            return UUID(bytes=topic_id)
    if name is None:
        raise ProtocolError("a topic with neither name nor id")
    return name


def count_errors(version: int, response: MetadataResponse, counts: Counter[int]) -> None:
    if response.error and version >= TOP_LEVEL_ERROR_FROM:
        counts[response.error] += 1
    if response.topic_errors:
        counts.update(response.topic_errors)


def encode_response(version: int, response: MetadataResponse) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    head = bytearray()
    if version >= THROTTLE_FROM:
        head += INT32.pack(response.throttle_ms)
    head += array_length(len(response.nodes), flexible)
    for node in response.nodes:
        head += INT32.pack(node.node_id) + string(node.host, flexible) + INT32.pack(node.port)
        if version >= CONTROLLER_FROM:
            head += nullable_string(node.rack, flexible)
        if flexible:
            head.append(0)
    if version >= CLUSTER_ID_FROM:
        head += nullable_string(response.cluster_id, flexible)
    if version >= CONTROLLER_FROM:
        head += INT32.pack(response.controller_id)
    head += array_length(response.topic_count, flexible)
    return b"".join((head, response.topics, _tail(version, response)))


def _tail(version: int, response: MetadataResponse) -> bytes:
    tail = b""
    if AUTHORIZED_OPERATIONS_FROM <= version <= CLUSTER_OPERATIONS_UNTIL:
        tail += INT32.pack(response.cluster_operations)
    if version >= TOP_LEVEL_ERROR_FROM:
        tail += INT16.pack(response.error)
    return tail + b"\x00" if version >= FLEXIBLE_FROM else tail


def encode_topic(
    version: int,
    name: str | None,
    topic_id: UUID = ZERO_UUID,
    partitions: bytes | None = None,
    *,
    error: int = ErrorCode.NONE,
    is_internal: bool = False,
    operations: int = OPERATIONS_NOT_ASKED,
) -> bytes:
    """Encodes one topic of a response, with the block of `encode_partitions`. The name is null for unknown ids."""
    flexible = version >= FLEXIBLE_FROM
    block = bytearray(INT16.pack(error))
    block += nullable_string(name if version >= BY_ID_FROM else name or "", flexible)
    if version >= TOPIC_IDS_FROM:
        block += topic_id.bytes
    if version >= CONTROLLER_FROM:
        block += INT8.pack(is_internal)
    block += array_length(0, flexible) if partitions is None else partitions
    if version >= AUTHORIZED_OPERATIONS_FROM:
        block += INT32.pack(operations)
    if flexible:
        block.append(0)
    return bytes(block)


def encode_partitions(version: int, rows: Iterable[PartitionRow]) -> bytes:
    """Encodes the array of a topic's partitions; the same bytes for all versions of one `partition_layout`."""
    flexible = version >= FLEXIBLE_FROM
    with_epoch = version >= LEADER_EPOCH_FROM
    with_offline = version >= OFFLINE_REPLICAS_FROM
    end_of_row = b"\x00" if flexible else b""
    parts: list[bytes] = []
    for row in rows:
        if with_epoch:
            head = _ROW_WITH_EPOCH.pack(row.error, row.partition, row.leader, row.leader_epoch)
        else:
            head = _ROW.pack(row.error, row.partition, row.leader)
        offline = _brokers(row.offline, flexible) if with_offline else b""
        parts.append(head + _brokers(row.replicas, flexible) + _brokers(row.isr, flexible) + offline + end_of_row)
    return array_length(len(parts), flexible) + b"".join(parts)


def partition_layout(version: int) -> int:
    """Returns the lowest version with the same encoding and errors of partitions.

    It is the key under which a block is cached.
    """
    for first in (FLEXIBLE_FROM, LEADER_EPOCH_FROM, LISTENER_NOT_FOUND_FROM, OFFLINE_REPLICAS_FROM, 1):
        if version >= first:
            return first
    return 0


def _brokers(ids: Sequence[int], flexible: bool) -> bytes:
    return array_length(len(ids), flexible) + _int32s(len(ids)).pack(*ids)


@cache
def _int32s(count: int) -> Struct:
    return Struct(f">{count}i")
