"""Encodes and decodes consumer group records of `__consumer_offsets`, in Kafka's format.

key     int16 kind, then strings with int16 lengths
value   int16 version 0, then the flexible encoding of newer messages

kind  key                       value
3     group                     epoch, tag 0: hash of the subscribed topics
5     group, member             subscription, tag 0: metadata of a classic-protocol member
6     group                     epoch of the target
7     group, member             target partitions
8     group, member             epoch, previous epoch, state, assigned, revoking
16    group, expression         topics, version, time
"""

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import TypeVar
from uuid import UUID

from headrace.core.coordinator import CoordinatorRecord
from headrace.core.group.consumer.model import (
    ClassicMemberMetadata,
    CurrentAssignment,
    GroupEpoch,
    HoldingOf,
    MemberState,
    MemberSubscribed,
    ModernFact,
    Partitions,
    Rebalance,
    RegexResolved,
    ResolvedTopics,
    Subscription,
    TargetEpoch,
    TargetOf,
)
from headrace.protocol.primitives import (
    EMPTY_TAGS,
    INT16,
    INT32,
    INT64,
    Reader,
    array_length,
    bytes_length,
    nullable_string,
    string,
    uvarint,
)

GROUP_EPOCH, MEMBER, TARGET_EPOCH, TARGET, HOLDING, REGEX = 3, 5, 6, 7, 8, 16
# Topics of a group in Kafka 4.0's format; replaced by the hash in kind 3.
PARTITION_METADATA = 4
KINDS = frozenset({GROUP_EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, HOLDING, REGEX})

Content = TypeVar("Content")

_VERSION = INT16.pack(0)
_EPOCHS_AND_STATE = Struct(">iib")


def encode(fact: ModernFact) -> CoordinatorRecord | None:
    match fact:
        case GroupEpoch(group_id, epoch, topics_hash):
            return _record(GROUP_EPOCH, (group_id,), epoch, lambda one: _epoch(one, topics_hash))
        case MemberSubscribed(group_id, member_id, subscription):
            return _record(MEMBER, (group_id, member_id), subscription, _subscription)
        case TargetEpoch(group_id, epoch, made_ms):
            return _record(TARGET_EPOCH, (group_id,), epoch, lambda one: _epoch(one, made_ms))
        case TargetOf(group_id, member_id, partitions):
            return _record(TARGET, (group_id, member_id), partitions, lambda one: _partitions(one) + EMPTY_TAGS)
        case HoldingOf(group_id, member_id, holding):
            return _record(HOLDING, (group_id, member_id), holding, _holding)
        case RegexResolved(group_id, regex, resolved):
            return _record(REGEX, (group_id, regex), resolved, _resolved)
        case Rebalance():
            return None


def decode(record: CoordinatorRecord) -> ModernFact | None:
    """Decodes a record. Returns None for an unknown kind."""
    key = Reader(memoryview(record.key))
    kind, group_id = key.int16(), key.string()
    value = Reader(memoryview(record.value), flexible=True) if record.value is not None else None
    if value is not None:
        value.int16()  # version 0 is the only one; newer ones add tags, which are skipped
    match kind:
        case 3:
            epoch, topics_hash = _read_epoch(value)
            return GroupEpoch(group_id, epoch, topics_hash)
        case 5:
            return MemberSubscribed(group_id, key.string(), _read(value, _read_subscription))
        case 6:
            return TargetEpoch(group_id, *_read_epoch(value))
        case 7:
            return TargetOf(group_id, key.string(), _read(value, _read_partitions))
        case 8:
            return HoldingOf(group_id, key.string(), _read(value, _read_holding))
        case 16:
            return RegexResolved(group_id, key.string(), _read(value, _read_resolved))
        case _:
            return None


# Writing


def _record(
    kind: int, names: Iterable[str], content: Content | None, body: Callable[[Content], bytes]
) -> CoordinatorRecord:
    key = INT16.pack(kind) + b"".join(string(name, False) for name in names)
    return CoordinatorRecord(key, None if content is None else _VERSION + body(content))


def _epoch(epoch: int, beside: int) -> bytes:
    """Encodes an epoch and the number next to it: a group's topic hash, or a target's time."""
    return INT32.pack(epoch) + (_tagged(INT64.pack(beside)) if beside else EMPTY_TAGS)


def _tagged(content: bytes) -> bytes:
    """Returns the tagged fields: number 0 alone."""
    return uvarint(1) + uvarint(0) + uvarint(len(content)) + content


def _partitions(partitions: Partitions) -> bytes:
    rows = [array_length(len(partitions), True)]
    for topic_id in sorted(partitions):
        indexes = sorted(partitions[topic_id])
        rows += [topic_id.bytes, array_length(len(indexes), True), *map(INT32.pack, indexes), EMPTY_TAGS]
    return b"".join(rows)


def _strings(texts: Iterable[str]) -> bytes:
    rows = [string(text, True) for text in texts]
    return array_length(len(rows), True) + b"".join(rows)


def _subscription(one: Subscription) -> bytes:
    return b"".join(
        (
            nullable_string(one.instance_id, True),
            nullable_string(one.rack_id, True),
            string(one.client_id, True),
            string(one.client_host, True),
            _strings(one.topics),
            nullable_string(one.regex, True),
            INT32.pack(one.rebalance_timeout_ms),
            nullable_string(one.assignor, True),
            EMPTY_TAGS if one.classic is None else _tagged(_classic_side(one.classic)),
        )
    )


def _classic_side(side: ClassicMemberMetadata) -> bytes:
    rows = [b"\x01", INT32.pack(side.session_timeout_ms), array_length(len(side.protocols), True)]
    for name, metadata in side.protocols:
        rows += [string(name, True), bytes_length(len(metadata), True), metadata, EMPTY_TAGS]
    return b"".join(rows) + EMPTY_TAGS


def _holding(holding: CurrentAssignment) -> bytes:
    start = _EPOCHS_AND_STATE.pack(holding.epoch, holding.previous_epoch, holding.state)
    return start + _partitions(holding.assigned) + _partitions(holding.revoking) + EMPTY_TAGS


def _resolved(resolved: ResolvedTopics) -> bytes:
    # The time of matching is informational. headrace reads it from the record's own timestamp.
    return _strings(sorted(resolved.topics)) + INT64.pack(resolved.version) + INT64.pack(0) + EMPTY_TAGS


# Reading


def _read(value: Reader | None, body: Callable[[Reader], Content]) -> Content | None:
    return None if value is None else body(value)


def _read_epoch(value: Reader | None) -> tuple[int | None, int]:
    if value is None:
        return None, 0
    epoch = value.int32()
    tags: Mapping[int, Reader] = dict(value.tags())
    return epoch, tags[0].int64() if 0 in tags else 0


def _read_partitions(value: Reader) -> Partitions:
    found: dict[UUID, frozenset[int]] = {}
    for _ in value.array(17):
        topic_id = value.uuid()
        found[topic_id] = frozenset(value.int32() for _ in value.array(4))
        value.skip_tags()
    return found


def _read_subscription(value: Reader) -> Subscription:
    instance_id, rack_id = value.nullable_string(), value.nullable_string()
    client_id, client_host = value.string(), value.string()
    topics = tuple(value.string() for _ in value.array(1))
    regex, rebalance_timeout_ms, assignor = value.nullable_string(), value.int32(), value.nullable_string()
    tags = dict(value.tags())
    return Subscription(
        topics,
        regex,
        instance_id,
        rack_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        assignor,
        _read_classic_side(tags[0]) if 0 in tags else None,
    )


def _read_classic_side(value: Reader) -> ClassicMemberMetadata | None:
    if value.int8() < 0:
        return None
    session_timeout_ms = value.int32()
    protocols = []
    for _ in value.array(3):
        name, metadata = value.string(), value.nullable_bytes()
        value.skip_tags()
        protocols.append((name, bytes(metadata or b"")))
    return ClassicMemberMetadata(session_timeout_ms, tuple(protocols))


def _read_holding(value: Reader) -> CurrentAssignment:
    epoch, previous_epoch, state = value.int32(), value.int32(), value.int8()
    known = MemberState(state) if state in MemberState._value2member_map_ else MemberState.UNKNOWN
    return CurrentAssignment(epoch, previous_epoch, known, _read_partitions(value), _read_partitions(value))


def _read_resolved(value: Reader) -> ResolvedTopics:
    return ResolvedTopics(frozenset(value.string() for _ in value.array(1)), value.int64())
