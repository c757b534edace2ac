"""Encodes and decodes records of `__consumer_offsets`, in Kafka's format.

    key    ┌──────┬─────────────────────────┐    kind 0, 1: group, topic, partition → a committed offset
           │ kind │ fields of the kind      │    kind 2:    group                   → a classic group
           │ int16│                         │    other kinds belong to other group types
           └──────┴─────────────────────────┘
    value  ┌─────────┬──────────────────────┐    null value: tombstone for the key
           │ version │ fields               │
           │ int16   │                      │
           └─────────┴──────────────────────┘

A committed offset is written in version 4 of its value, the first with compact lengths and tagged fields:

    ┌─────────┬────────┬─────────────┬──────────────────┬──────────┬───────────┬────────────────────────┐
    │ version │ offset │ leaderEpoch │ metadata         │ commit   │ tagged    │ topicId, if it is known│
    │ = 4     │        │             │ varint length +1 │ Timestamp│ fields    │ tag 0, 16 bytes        │
    │ int16   │ int64  │ int32       │ bytes            │ int64    │ varint 0/1│ 00 10 uuid             │
    └─────────┴────────┴─────────────┴──────────────────┴──────────┴───────────┴────────────────────────┘

As in Kafka 4.3, an offset with an expiration time of its own is written in version 1, which has no topic id. Versions
0 to 4 of committed offsets are read. Classic groups are written in version 3; versions 0 to 3 of them are read.
"""

from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from headrace.core.coordinator import CoordinatorRecord
from headrace.core.group.model import ClassicGroup, GroupState, Member, Protocol
from headrace.model.errors import CorruptLog, ProtocolError
from headrace.model.ids import TopicPartition
from headrace.protocol.primitives import EMPTY_TAGS, Reader, uvarint

OFFSET_KEYS = frozenset({b"\x00\x00", b"\x00\x01"})  # first bytes of keys of kinds 0 and 1
GROUP_KIND = 2

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_OFFSET_AND_LENGTH = Struct(">qh")
_VERSION_OFFSET_AND_EPOCH = Struct(">hqi")
_OFFSET_AND_EPOCH = Struct(">qi")
_WITHOUT_NOTE = Struct(">hqihq")  # a whole value in version 3: version, offset, leader epoch, empty metadata, time
_WITH_TOPIC_ID = Struct(">hqiBq19s")  # a whole value in version 4: the same, and the tagged field of the topic id
_NULL = b"\xff\xff"
# The first version that adds tagged fields and compact lengths.
_FLEXIBLE_FROM = 4
_TOPIC_ID_TAG = 0
_TOPIC_ID_BYTES = 16
_TOPIC_ID_FIELD = b"\x01\x00\x10"  # one tagged field: tag 0 with 16 bytes

# Kafka's ZERO_UUID: no topic has this id. The id is kept as bytes, because a UUID costs more to make and to compare.
NO_TOPIC_ID = bytes(_TOPIC_ID_BYTES)
# Ids of which one object is shared by all offsets that name the topic: about 2 MB.
TOPIC_IDS_SHARED_MAX = 16 * 1024


# A log repeats the same few keys: each is decoded once. Enough for the groups of one partition of the topic, and some
# 30 MB at most.
KEYS_REMEMBERED_MAX = 64 * 1024

# Called by a NamedTuple's own constructor, at half its cost; loading a partition creates a million of them.
_new_tuple = tuple.__new__


class OffsetAndMetadata(NamedTuple):
    """A committed offset. `record_offset` is the offset of its record in the log."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1  # wall time
    expires_ms: int = -1  # wall time; -1: expires with the group
    topic_id: bytes = NO_TOPIC_ID  # of the topic that it was committed for; NO_TOPIC_ID if the record has none
    record_offset: int = -1


class _TopicIds(dict[bytes, bytes | None]):
    """Cache of topic ids by encoded tagged fields; None for other fields. Equal ids are one object."""

    def __missing__(self, fields: bytes) -> bytes | None:
        topic_id = fields[len(_TOPIC_ID_FIELD) :] if fields.startswith(_TOPIC_ID_FIELD) else None
        if len(self) >= TOPIC_IDS_SHARED_MAX:
            self.clear()
        self[fields] = topic_id
        return topic_id


_topic_ids = _TopicIds()


class OffsetKey(NamedTuple):
    group_id: str
    place: TopicPartition


def record_kind(record: CoordinatorRecord) -> int:
    """Returns the kind of a record; -1 if its key is too short."""
    return int(_INT16.unpack_from(record.key)[0]) if len(record.key) >= _INT16.size else -1


# Writing


def offset_record(key: OffsetKey, committed: OffsetAndMetadata | None) -> CoordinatorRecord:
    """Encodes a committed offset. By far the most common record, so its bytes are built in as few steps as possible."""
    group, topic = key.group_id.encode(), key.place.topic.encode()
    key_bytes = b"\x00\x01%b%b%b%b%b" % (
        _INT16.pack(len(group)),
        group,
        _INT16.pack(len(topic)),
        topic,
        _INT32.pack(key.place.partition),
    )
    if committed is None:
        return CoordinatorRecord(key_bytes, None)
    offset, leader_epoch, metadata, committed_ms, expires_ms, topic_id, _ = committed
    if metadata or expires_ms >= 0 or topic_id == NO_TOPIC_ID:
        return CoordinatorRecord(key_bytes, _unusual_offset(committed))
    value = _WITH_TOPIC_ID.pack(4, offset, leader_epoch, 1, committed_ms, _TOPIC_ID_FIELD + topic_id)
    return CoordinatorRecord(key_bytes, value)


def _unusual_offset(committed: OffsetAndMetadata) -> bytes:
    """Encodes the value of an offset with metadata, with an expiration time of its own, or without a topic id."""
    offset, leader_epoch, metadata, committed_ms, expires_ms, topic_id, _ = committed
    note = metadata.encode()
    if expires_ms >= 0:
        return b"\x00\x01%b%b%b%b" % (
            _OFFSET_AND_LENGTH.pack(offset, len(note)),
            note,
            _INT64.pack(committed_ms),
            _INT64.pack(expires_ms),
        )
    return b"%b%b%b%b%b" % (
        _VERSION_OFFSET_AND_EPOCH.pack(4, offset, leader_epoch),
        uvarint(len(note) + 1),
        note,
        _INT64.pack(committed_ms),
        EMPTY_TAGS if topic_id == NO_TOPIC_ID else _TOPIC_ID_FIELD + topic_id,
    )


def group_record(group_id: str, group: ClassicGroup | None) -> CoordinatorRecord:
    key = _INT16.pack(GROUP_KIND) + _string(group_id)
    if group is None:
        return CoordinatorRecord(key, None)
    parts = [
        _INT16.pack(3),
        _string(group.protocol_type or ""),
        _INT32.pack(group.generation),
        _nullable_string(group.protocol),
        _nullable_string(group.leader),
        _INT64.pack(group.state_since_ms),
        _INT32.pack(len(group.members)),
    ]
    for member in group.members.values():
        parts += [
            _string(member.member_id),
            _nullable_string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _bytes(member.metadata_for(group.protocol)),
            _bytes(member.assignment),
        ]
    return CoordinatorRecord(key, b"".join(parts))


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded


def _nullable_string(text: str | None) -> bytes:
    return _NULL if text is None else _string(text)


def _bytes(content: bytes) -> bytes:
    return _INT32.pack(len(content)) + content


# Reading


class _Fields:
    """Reads the fields of one record in order."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    def number(self, layout: Struct) -> int:
        try:
            value: int = layout.unpack_from(self._data, self._position)[0]
        except StructError:
            raise CorruptLog("a record of the offsets topic ends too early") from None
        self._position += layout.size
        return value

    def take(self, length: int) -> bytes:
        content = self._data[self._position : self._position + length]
        if length < 0 or len(content) != length:
            raise CorruptLog("a record of the offsets topic ends too early")
        self._position += length
        return content

    def nullable_string(self) -> str | None:
        length = self.number(_INT16)
        return None if length == -1 else self.take(length).decode("utf-8", "replace")

    def string(self) -> str:
        return self.nullable_string() or ""

    def bytes(self) -> bytes:
        return self.take(self.number(_INT32))


@lru_cache(KEYS_REMEMBERED_MAX)
def read_offset_key(key: bytes) -> OffsetKey:
    fields = _Fields(key, _INT16.size)
    return OffsetKey(fields.string(), TopicPartition(fields.string(), fields.number(_INT32)))


def read_offset(value: bytes, record_offset: int = -1) -> OffsetAndMetadata:
    """Decodes the value of a committed offset, versions 0 to 4.

    Raises CorruptLog for other versions and truncated values.
    """
    if len(value) == _WITH_TOPIC_ID.size:
        version, offset, leader_epoch, note_length, committed_ms, fields = _WITH_TOPIC_ID.unpack(value)
        if version == 4 and note_length == 1:  # as nearly all values
            topic_id = _topic_ids[fields]
            if topic_id is not None:
                return _new_tuple(
                    OffsetAndMetadata, (offset, leader_epoch, "", committed_ms, -1, topic_id, record_offset)
                )
    elif len(value) == _WITHOUT_NOTE.size:
        version, offset, leader_epoch, note_bytes, committed_ms = _WITHOUT_NOTE.unpack(value)
        if version == 3 and not note_bytes:  # as nearly all values of an older broker
            return _new_tuple(
                OffsetAndMetadata, (offset, leader_epoch, "", committed_ms, -1, NO_TOPIC_ID, record_offset)
            )
    return _read_any_offset(value, record_offset)


def _read_any_offset(value: bytes, record_offset: int) -> OffsetAndMetadata:
    fields = _Fields(value)
    version = _version(fields, "an offset", newest=4)
    if version >= _FLEXIBLE_FROM:
        return _read_flexible_offset(value, record_offset)
    offset = fields.number(_INT64)
    leader_epoch = fields.number(_INT32) if version >= 3 else -1
    metadata = fields.string()
    committed_ms = fields.number(_INT64)
    expires_ms = fields.number(_INT64) if version == 1 else -1
    return OffsetAndMetadata(offset, leader_epoch, metadata, committed_ms, expires_ms, NO_TOPIC_ID, record_offset)


def _read_flexible_offset(value: bytes, record_offset: int) -> OffsetAndMetadata:
    reader = Reader(memoryview(value), _INT16.size, flexible=True)
    topic_id = NO_TOPIC_ID
    try:
        offset, leader_epoch = reader.numbers(_OFFSET_AND_EPOCH)
        metadata, committed_ms = reader.string(), reader.int64()
        for tag, field in reader.tags():
            if tag == _TOPIC_ID_TAG:
                topic_id = bytes(field.take(_TOPIC_ID_BYTES))
    except ProtocolError as error:
        raise CorruptLog(f"a committed offset cannot be read: {error}") from None
    return OffsetAndMetadata(offset, leader_epoch, metadata, committed_ms, -1, topic_id, record_offset)


def read_group_key(record: CoordinatorRecord) -> str:
    return _Fields(record.key, _INT16.size).string()


def read_group(group_id: str, value: bytes) -> ClassicGroup:
    """Decodes the group as of its last written generation: a group with members is stable."""
    fields = _Fields(value)
    version = _version(fields, "a group", newest=3)
    protocol_type, generation = fields.string(), fields.number(_INT32)
    protocol, leader = fields.nullable_string(), fields.nullable_string()
    since_ms = fields.number(_INT64) if version >= 2 else -1
    members = [_read_member(fields, version, protocol or "") for _ in range(fields.number(_INT32))]
    return ClassicGroup(
        group_id=group_id,
        state=GroupState.STABLE if members else GroupState.EMPTY,
        state_since_ms=since_ms,
        generation=generation,
        protocol_type=protocol_type or None,
        protocol=protocol,
        leader=leader,
        members={member.member_id: member for member in members},
    )


def _read_member(fields: _Fields, version: int, protocol: str) -> Member:
    member_id = fields.string()
    instance_id = fields.nullable_string() if version >= 3 else None
    client_id, client_host = fields.string(), fields.string()
    rebalance_timeout_ms = fields.number(_INT32) if version >= 1 else -1
    session_timeout_ms = fields.number(_INT32)
    metadata, assignment = fields.bytes(), fields.bytes()
    return Member(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        protocols=(Protocol(protocol, metadata),),
        assignment=assignment,
    )


def _version(fields: _Fields, what: str, newest: int) -> int:
    version = fields.number(_INT16)
    if not 0 <= version <= newest:
        raise CorruptLog(f"{what} is written in version {version} of its format; versions 0 to {newest} are known")
    return version
