"""Subscriptions and assignments of the classic consumer protocol, as bytes.

    ┌───────┬──────── body, by version ────────────
    │version│ topics or partitions, user data, …        later versions only append fields
    └───────┴───────────────────────────────────────

Writes version 0, since no field of later versions is needed, and reads the fields of version 0 from any version.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct

from headrace.model.errors import ProtocolError
from headrace.protocol.primitives import INT32, Reader, array_length, string

PROTOCOL_TYPE = "consumer"
RANGE = "range"

_VERSION = Struct(">h")
_VERSION_0 = _VERSION.pack(0)
_NO_USER_DATA = Struct(">i").pack(-1)
_TOPIC_BYTES_MIN = 2
_TOPIC_WITH_PARTITIONS_BYTES_MIN = 6

Assignment = Mapping[str, Sequence[int]]


def encode_subscription(topics: Iterable[str]) -> bytes:
    names = sorted(set(topics))
    return b"".join(
        [_VERSION_0, array_length(len(names), False), *(string(name, False) for name in names), _NO_USER_DATA]
    )


def decode_subscription(metadata: bytes) -> list[str]:
    reader = _body(metadata)
    return [reader.string() for _ in reader.array(_TOPIC_BYTES_MIN)]


def encode_assignment(assignment: Assignment) -> bytes:
    parts = [_VERSION_0, array_length(len(assignment), False)]
    for topic, partitions in sorted(assignment.items()):
        parts += [string(topic, False), array_length(len(partitions), False)]
        parts += [INT32.pack(partition) for partition in partitions]
    return b"".join([*parts, _NO_USER_DATA])


def decode_assignment(assignment: bytes) -> dict[str, list[int]]:
    """Decodes an assignment; a member without partitions has an empty assignment of zero bytes."""
    if not assignment:
        return {}
    reader = _body(assignment)
    found: dict[str, list[int]] = {}
    for _ in reader.array(_TOPIC_WITH_PARTITIONS_BYTES_MIN):
        topic = reader.string()
        found.setdefault(topic, []).extend(reader.int32() for _ in reader.array(INT32.size))
    return found


def _body(data: bytes) -> Reader:
    reader = Reader(memoryview(data))
    version = reader.int16()
    if version < 0:
        raise ProtocolError(f"version {version} of the consumer protocol cannot be")
    return reader
