"""Fetch, versions 4 to 18: the response refers to batches in their files and never reads them."""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from headrace.model.errors import ErrorCode
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.frames import Part, RecordsRef, response_start
from headrace.protocol.messages.produce import leader_tag
from headrace.protocol.primitives import INT32, INT64, Reader, array_length, string, uvarint

TOPIC_IDS_FROM = 13
REPLICA_STATE_FROM = 15
SESSIONS_FROM = 7
LOG_START_FROM = 5
FLEXIBLE_FROM = SERVED[ApiKey.FETCH].first_flexible

# Smallest encoded size of an element: bounds the counts that are accepted.
_TOPIC_BYTES_MIN = 2
_PARTITION_BYTES_MIN = 16
_FORGOTTEN_BYTES_MIN = 2

# Maximum wait, minimum and maximum bytes, isolation level; then id and epoch of the session.
_LIMITS = Struct(">iiib")
_LIMITS_AND_SESSION = Struct(">iiibii")
_READ_COMMITTED = 1
# Index, current leader epoch (since 9), offset, last fetched epoch (since 12), log start (since 5), maximum bytes.
_PARTITION = Struct(">iiqiqi")
_PARTITION_BEFORE_12 = Struct(">iiqqi")
_PARTITION_BEFORE_9 = Struct(">iqqi")
_PARTITION_BEFORE_5 = Struct(">iqi")

_ROW = Struct(">ihqqq")
_ROW_WITHOUT_LOG_START = Struct(">ihqq")
_EPOCH_END = Struct(">iq")
_CLUSTER_ID_TAG = 0
REPLICA_STATE_TAG = 1
DIVERGING_EPOCH_TAG = 0
_CURRENT_LEADER_TAG = 1

CONSUMER = -1  # the replica id that consumers send


class FetchPartition(NamedTuple):
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    replica_id: int
    max_wait_ms: int
    bytes_min: int
    bytes_max: int
    read_committed: bool
    session_id: int
    session_epoch: int
    topics: list[tuple[str | UUID, list[FetchPartition]]]
    forgotten: list[tuple[str | UUID, list[int]]]
    rack: str
    replica_epoch: int = -1


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class PartitionRow(NamedTuple):
    partition: int
    error: int = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: tuple[AbortedTransaction, ...] | None = None
    preferred_replica: int = -1
    records: RecordsRef | None = None
    current_leader: tuple[int, int] | None = None
    diverging: tuple[int, int] | None = None  # for a follower: an epoch of the leader, and its end offset


def decode_request(reader: Reader, version: int) -> FetchRequest:
    replica_id, replica_epoch = reader.int32() if version < REPLICA_STATE_FROM else CONSUMER, -1
    session_id, session_epoch = 0, -1
    if version >= SESSIONS_FROM:
        max_wait_ms, bytes_min, bytes_max, isolation, session_id, session_epoch = reader.numbers(_LIMITS_AND_SESSION)
    else:
        max_wait_ms, bytes_min, bytes_max, isolation = reader.numbers(_LIMITS)
    topics = []
    for _ in reader.array(_TOPIC_BYTES_MIN):
        topic = _topic(reader, version)
        topics.append((topic, [_partition(reader, version) for _ in reader.array(_PARTITION_BYTES_MIN)]))
        reader.skip_tags()
    forgotten = []
    if version >= SESSIONS_FROM:
        for _ in reader.array(_FORGOTTEN_BYTES_MIN):
            topic = _topic(reader, version)
            forgotten.append((topic, [reader.int32() for _ in reader.array(INT32.size)]))
            reader.skip_tags()
    rack = reader.string() if version >= 11 else ""
    for tag, value in reader.tags():
        if tag == REPLICA_STATE_TAG and version >= REPLICA_STATE_FROM:
            replica_id, replica_epoch = value.int32(), value.int64()
    reader.expect_end()
    return FetchRequest(
        replica_id,
        max_wait_ms,
        bytes_min,
        bytes_max,
        isolation == _READ_COMMITTED,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack,
        replica_epoch,
    )


def _topic(reader: Reader, version: int) -> str | UUID:
    return reader.uuid() if version >= TOPIC_IDS_FROM else reader.string()


def _partition(reader: Reader, version: int) -> FetchPartition:
    leader_epoch = last_epoch = log_start = -1
    if version >= 12:
        index, leader_epoch, offset, last_epoch, log_start, bytes_max = reader.numbers(_PARTITION)
    elif version >= 9:
        index, leader_epoch, offset, log_start, bytes_max = reader.numbers(_PARTITION_BEFORE_12)
    elif version >= LOG_START_FROM:
        index, offset, log_start, bytes_max = reader.numbers(_PARTITION_BEFORE_9)
    else:
        index, offset, bytes_max = reader.numbers(_PARTITION_BEFORE_5)
    reader.skip_tags()
    return FetchPartition(index, leader_epoch, offset, last_epoch, log_start, bytes_max)


def encode_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str | UUID, Sequence[PartitionRow]]],
    *,
    session_id: int = 0,
    error: int = ErrorCode.NONE,
    throttle_ms: int = 0,
) -> list[Part]:
    """Returns the response as parts: records, and the bytes between them, in order."""
    flexible = version >= FLEXIBLE_FROM
    parts: list[Part] = []
    piece = bytearray(INT32.pack(throttle_ms))
    records_bytes = 0
    if version >= SESSIONS_FROM:
        piece += error.to_bytes(2, "big", signed=True) + INT32.pack(session_id)
    piece += array_length(len(topics), flexible)
    for topic, rows in topics:
        piece += topic.bytes if isinstance(topic, UUID) else string(topic, flexible)
        piece += array_length(len(rows), flexible)
        for row in rows:
            _encode_row(piece, row, version, flexible)
            if row.records is not None:
                records_bytes += row.records.length
                parts += (piece, row.records)
                piece = bytearray()
            if flexible:
                piece += _row_tags(row)
        if flexible:
            piece.append(0)
    if flexible:
        piece.append(0)
    if piece or not parts:
        parts.append(piece)
    own_bytes = sum(len(part) for part in parts if isinstance(part, bytearray))
    start = response_start(ApiKey.FETCH, version, correlation_id, own_bytes + records_bytes)
    parts[0] = start + parts[0]  # type: ignore[operator]  # the first part is always a piece of ours
    return parts


def _row_tags(row: PartitionRow) -> bytes:
    """Encodes the tags of a row: the diverging epoch of a follower, the current leader, or none."""
    if row.diverging is None:
        return leader_tag(_CURRENT_LEADER_TAG, row.current_leader)
    value = _EPOCH_END.pack(*row.diverging) + b"\x00"
    return b"\x01" + uvarint(DIVERGING_EPOCH_TAG) + uvarint(len(value)) + value


def _encode_row(piece: bytearray, row: PartitionRow, version: int, flexible: bool) -> None:
    """Encodes a row up to and including the length of its records."""
    if version >= LOG_START_FROM:
        piece += _ROW.pack(row.partition, row.error, row.high_watermark, row.last_stable_offset, row.log_start_offset)
    else:
        piece += _ROW_WITHOUT_LOG_START.pack(row.partition, row.error, row.high_watermark, row.last_stable_offset)
    if row.aborted is None:
        piece += b"\x00" if flexible else b"\xff\xff\xff\xff"
    else:
        piece += array_length(len(row.aborted), flexible)
        for producer_id, first_offset in row.aborted:
            piece += INT64.pack(producer_id) + INT64.pack(first_offset)
            if flexible:
                piece.append(0)
    if version >= 11:
        piece += INT32.pack(row.preferred_replica)
    length = row.records.length if row.records is not None else 0
    piece += uvarint(length + 1) if flexible else INT32.pack(length)
