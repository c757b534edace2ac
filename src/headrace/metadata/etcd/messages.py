"""The etcd messages that headrace uses, in Protobuf's wire format. Pure; performs no I/O.

The supported part of Protobuf is numbers, bytes and nested messages:

    field = varint(number << 3 | kind) value      kind 0: a varint    kind 2: varint(length) bytes
    varint = seven bits per byte, lowest first; the high bit marks that more follow

A field that is zero or empty is omitted, as in proto3. Requests are encoded and responses are decoded; unknown fields
are skipped. `store.py` and `failover.py` use these messages.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.model.errors import ProtocolError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10  # 64 bits, seven at a time
_UINT64 = (1 << 64) - 1
_SIGN = 1 << 63


def integer(field: int, value: int) -> bytes:
    """Encodes an int64, uint64, enum or bool."""
    return _varint(field << 3 | _VARINT) + _varint(value & _UINT64) if value else b""


def data(field: int, value: bytes) -> bytes:
    return message(field, value) if value else b""


def message(field: int, value: bytes) -> bytes:
    """Encodes a nested message. An empty one is encoded as well, because its presence has a meaning."""
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return data(field, value.encode())


def fields(encoded: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields (field, number, bytes) of each field; one of the two values is 0 or empty. Numbers are signed."""
    position = 0
    while position < len(encoded):
        tag, position = _read_varint(encoded, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _read_varint(encoded, position)
            yield tag >> 3, value - (1 << 64) if value & _SIGN else value, b""
            continue
        if kind == _BYTES:
            length, position = _read_varint(encoded, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ProtocolError(f"etcd sent a field of the unknown kind {kind}")
        if position + length > len(encoded):
            raise ProtocolError("etcd sent a message that ends in the middle of a field")
        yield tag >> 3, 0, encoded[position : position + length]
        position += length


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(encoded: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(encoded[position : position + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & _UINT64, position + index + 1
    raise ProtocolError("etcd sent a number that does not end")


_COMPARE_EQUAL, _TARGET_MOD_REVISION = 0, 2
_EVENT_DELETE = 1

TXN = "/etcdserverpb.KV/Txn"
RANGE = "/etcdserverpb.KV/Range"
WATCH = "/etcdserverpb.Watch/Watch"
LEASE_GRANT = "/etcdserverpb.Lease/LeaseGrant"
LEASE_REVOKE = "/etcdserverpb.Lease/LeaseRevoke"
LEASE_KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"
STATUS = "/etcdserverpb.Maintenance/Status"
MEMBER_LIST = "/etcdserverpb.Cluster/MemberList"
MEMBER_ADD = "/etcdserverpb.Cluster/MemberAdd"
MEMBER_PROMOTE = "/etcdserverpb.Cluster/MemberPromote"


class Header(NamedTuple):
    cluster_id: int = 0
    revision: int = 0


class KeyValue(NamedTuple):
    key: bytes
    value: bytes
    mod_revision: int


class TxnReply(NamedTuple):
    header: Header
    succeeded: bool
    found: list[KeyValue]  # results of the range requests in the executed branch


class Event(NamedTuple):
    deleted: bool
    kv: KeyValue


class WatchReply(NamedTuple):
    header: Header
    created: bool
    canceled: bool
    compact_revision: int
    cancel_reason: str
    events: list[Event]


class Member(NamedTuple):
    member_id: int
    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]  # empty until the member has started for the first time
    is_learner: bool


# Requests


def prefix_end(prefix: bytes) -> bytes:
    """Returns the first key after all keys with the prefix.

    If there is none, returns a zero byte, etcd's end of the key space.
    """
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else b"\0"


def range_request(key: bytes, end: bytes = b"", *, keys_only: bool = False) -> bytes:
    """Linearizable: the member confirms with a majority that it is up to date."""
    return data(1, key) + data(2, end) + integer(8, keys_only)


def version_is(key: bytes, mod_revision: int) -> bytes:
    """Compares a key's revision; that of an absent key is 0."""
    kind = integer(1, _COMPARE_EQUAL) + integer(2, _TARGET_MOD_REVISION)
    return kind + data(3, key) + integer(6, mod_revision)


def put(key: bytes, value: bytes, lease: int) -> bytes:
    return message(2, data(1, key) + data(2, value) + integer(3, lease))


def delete(key: bytes) -> bytes:
    return message(3, data(1, key))


def look(key: bytes) -> bytes:
    return message(1, range_request(key, keys_only=True))


def txn_request(compare: Iterable[bytes], success: Iterable[bytes], failure: Iterable[bytes]) -> bytes:
    groups = ((1, compare), (2, success), (3, failure))
    return b"".join(message(field, one) for field, group in groups for one in group)


def watch_request(key: bytes, end: bytes, start_revision: int) -> bytes:
    return message(1, data(1, key) + data(2, end) + integer(3, start_revision))


def lease_grant_request(ttl_seconds: int) -> bytes:
    return integer(1, ttl_seconds)


def id_request(number: int) -> bytes:
    """Encodes the id of a lease to revoke or keep alive, or of a member to promote."""
    return integer(1, number)


def authenticate_request(user: str, password: str) -> bytes:
    return text(1, user) + text(2, password)


def member_add_request(peer_url: str, *, is_learner: bool) -> bytes:
    return text(1, peer_url) + integer(2, is_learner)


# Responses


def header_of(reply: bytes) -> Header:
    """Returns the header, which is the first field of every response."""
    for field, _, encoded in fields(reply):
        if field == 1:
            values = {number: value for number, value, _ in fields(encoded)}
            return Header(values.get(1, 0), values.get(3, 0))
    return Header()


def range_reply(reply: bytes) -> tuple[Header, list[KeyValue]]:
    return header_of(reply), _key_values(reply)


def txn_reply(reply: bytes) -> TxnReply:
    succeeded, found = False, []
    for field, number, encoded in fields(reply):
        if field == 2:
            succeeded = bool(number)
        elif field == 3:
            found += [kv for inner, _, shown in fields(encoded) if inner == 1 for kv in _key_values(shown)]
    return TxnReply(header_of(reply), succeeded, found)


def watch_reply(reply: bytes) -> WatchReply:
    numbers: dict[int, int] = {}
    reason = ""
    events = []
    for field, number, encoded in fields(reply):
        if field == 6:
            reason = encoded.decode(errors="replace")
        elif field == 11:
            events.append(_event(encoded))
        else:
            numbers[field] = number
    return WatchReply(header_of(reply), bool(numbers.get(3)), bool(numbers.get(4)), numbers.get(5, 0), reason, events)


def lease_reply(reply: bytes) -> tuple[int, int]:
    """Returns (lease, seconds to live) of a grant or of a renewal."""
    numbers = {field: number for field, number, _ in fields(reply)}
    return numbers.get(2, 0), numbers.get(3, 0)


def authenticate_reply(reply: bytes) -> str:
    return next((encoded.decode() for field, _, encoded in fields(reply) if field == 2), "")


def member_list_reply(reply: bytes) -> list[Member]:
    return [_member(encoded) for field, _, encoded in fields(reply) if field == 2]


def member_add_reply(reply: bytes) -> tuple[Member, list[Member]]:
    """Returns the new member, and all members including it."""
    new = next(_member(encoded) for field, _, encoded in fields(reply) if field == 2)
    return new, [_member(encoded) for field, _, encoded in fields(reply) if field == 3]


def _key_values(reply: bytes) -> list[KeyValue]:
    return [_key_value(encoded) for field, _, encoded in fields(reply) if field == 2]


def _key_value(encoded: bytes) -> KeyValue:
    key = value = b""
    mod_revision = 0
    for field, number, content in fields(encoded):
        if field == 1:
            key = content
        elif field == 3:
            mod_revision = number
        elif field == 5:
            value = content
    return KeyValue(key, value, mod_revision)


def _event(encoded: bytes) -> Event:
    deleted, kv = False, KeyValue(b"", b"", 0)
    for field, number, content in fields(encoded):
        if field == 1:
            deleted = number == _EVENT_DELETE
        elif field == 2:
            kv = _key_value(content)
    return Event(deleted, kv)


def _member(encoded: bytes) -> Member:
    texts: dict[int, list[str]] = {2: [""], 3: [], 4: []}
    numbers: dict[int, int] = {}
    for field, number, content in fields(encoded):
        if field in texts:
            texts[field].append(content.decode())
        else:
            numbers[field] = number
    return Member(
        numbers.get(1, 0) & 0xFFFF_FFFF_FFFF_FFFF, texts[2][-1], tuple(texts[3]), tuple(texts[4]), bool(numbers.get(5))
    )
