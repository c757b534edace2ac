"""Fetch on a follower, version 17: encodes the request and decodes the response; the leader's side is in `fetch.py`.

request    frame │ header │ limits │ session │ topics by id │ forgotten │ rack │ replica id and epoch, in a tag
response   header │ session │ rows, whose records are views into the frame
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from headrace.protocol.api import ApiKey
from headrace.protocol.frames import REQUEST_HEADER
from headrace.protocol.messages.fetch import DIVERGING_EPOCH_TAG, REPLICA_STATE_TAG
from headrace.protocol.primitives import EMPTY_TAGS, INT32, Reader, array_length, string, uvarint

VERSION = 17

_HEAD = Struct(">iiibii")  # max wait, minimum and maximum bytes, isolation, session id and epoch
_PARTITION = Struct(">iiqiqi")
_REPLICA_STATE = Struct(">iq")
_ROW = Struct(">ihqqq")
_EPOCH_END = Struct(">iq")
_UNCOMMITTED = 0

# Smallest encoded size of an element: bounds the counts that are accepted.
_TOPIC_BYTES_MIN = 18
_ROW_BYTES_MIN = 37


class WantedPartition(NamedTuple):
    """Fetch position of a follower in a partition, and its state there."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int


class ReplicaFetch(NamedTuple):
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    bytes_min: int
    bytes_max: int
    session_id: int
    session_epoch: int
    wanted: Mapping[tuple[UUID, int], WantedPartition]
    forgotten: Sequence[tuple[UUID, int]]


class FetchedPartition(NamedTuple):
    topic_id: UUID
    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    records: memoryview


class Fetched(NamedTuple):
    error: int
    session_id: int
    rows: list[FetchedPartition]


def encode_request(request: ReplicaFetch, correlation_id: int, client_id: str) -> bytes:
    """Returns the complete frame."""
    out = bytearray(INT32.pack(0))
    out += REQUEST_HEADER.pack(ApiKey.FETCH, VERSION, correlation_id) + string(client_id, False) + EMPTY_TAGS
    out += _HEAD.pack(
        request.max_wait_ms,
        request.bytes_min,
        request.bytes_max,
        _UNCOMMITTED,
        request.session_id,
        request.session_epoch,
    )
    topics: dict[UUID, list[tuple[int, WantedPartition]]] = {}
    for (topic_id, index), wanted in request.wanted.items():
        topics.setdefault(topic_id, []).append((index, wanted))
    out += array_length(len(topics), True)
    for topic_id, partitions in topics.items():
        out += topic_id.bytes + array_length(len(partitions), True)
        for index, wanted in partitions:
            out += _PARTITION.pack(index, *wanted) + EMPTY_TAGS
        out += EMPTY_TAGS
    _encode_forgotten(out, request.forgotten)
    out += string("", True)
    state = _REPLICA_STATE.pack(request.replica_id, request.replica_epoch) + EMPTY_TAGS
    out += b"\x01" + uvarint(REPLICA_STATE_TAG) + uvarint(len(state)) + state
    INT32.pack_into(out, 0, len(out) - INT32.size)
    return bytes(out)


def _encode_forgotten(out: bytearray, forgotten: Sequence[tuple[UUID, int]]) -> None:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in forgotten:
        topics.setdefault(topic_id, []).append(index)
    out += array_length(len(topics), True)
    for topic_id, indexes in topics.items():
        out += topic_id.bytes + array_length(len(indexes), True)
        out += b"".join(map(INT32.pack, indexes)) + EMPTY_TAGS


def decode_response(frame: memoryview) -> Fetched:
    """Decodes a response frame without its size. The caller has checked the correlation id."""
    reader = Reader(frame, INT32.size, flexible=True)
    reader.skip_tags()
    reader.int32()  # throttle time: leaders throttle followers by the amount that they send
    error, session_id = reader.int16(), reader.int32()
    rows = []
    for _ in reader.array(_TOPIC_BYTES_MIN):
        topic_id = reader.uuid()
        rows += [_row(reader, topic_id) for _ in reader.array(_ROW_BYTES_MIN)]
        reader.skip_tags()
    reader.skip_tags()
    return Fetched(error, session_id, rows)


def _row(reader: Reader, topic_id: UUID) -> FetchedPartition:
    index, error, high_watermark, _, log_start_offset = reader.numbers(_ROW)
    aborted = reader.uvarint()  # aborted transactions: a follower receives none
    for _ in range(aborted - 1):
        reader.take(16)
        reader.skip_tags()
    reader.int32()  # preferred replica
    length = reader.uvarint()
    records = reader.take(max(length - 1, 0))
    diverging = None
    for tag, value in reader.tags():
        if tag == DIVERGING_EPOCH_TAG:
            epoch, end_offset = value.numbers(_EPOCH_END)
            diverging = (epoch, end_offset)
    return FetchedPartition(topic_id, index, error, high_watermark, log_start_offset, diverging, records)
