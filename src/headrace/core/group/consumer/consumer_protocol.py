"""Subscription and assignment of classic consumers, as embedded in JoinGroup and SyncGroup.

subscription   int16 version, topics, user data │ v1: owned partitions │ v2: int32 generation │ v3: rack
assignment     int16 version, partitions, user data
"""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.core.group.consumer.model import Partitions
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.model.errors import ProtocolError
from headrace.protocol.primitives import INT16, INT32, Reader, string

_OWNED_FROM, _GENERATION_FROM, _RACK_FROM = 1, 2, 3
_NO_USER_DATA = INT32.pack(-1)


class EmbeddedSubscription(NamedTuple):
    topics: tuple[str, ...]
    owned: Mapping[str, frozenset[int]]
    rack_id: str | None


def read_subscription(metadata: bytes) -> EmbeddedSubscription:
    """Decodes a subscription. Raises ProtocolError for bytes that are none."""
    reader = Reader(memoryview(metadata))
    version = reader.int16()
    topics = tuple(sorted({reader.string() for _ in reader.array(2)}))
    reader.nullable_bytes()
    owned = _read_partitions(reader) if version >= _OWNED_FROM else {}
    if version >= _GENERATION_FROM:
        reader.int32()
    rack_id = reader.nullable_string() if version >= _RACK_FROM else None
    return EmbeddedSubscription(topics, owned, rack_id)


def read_assignment(assignment: bytes, topics: Topics) -> Partitions:
    """Decodes an assignment.

    Returns an empty one for a member without partitions and for bytes that are no assignment.
    """
    try:
        reader = Reader(memoryview(assignment))
        reader.int16()
        return by_id(_read_partitions(reader), topics)
    except ProtocolError:
        return {}


def write_assignment(partitions: Partitions, topics: Topics) -> bytes:
    rows = []
    for topic_id, indexes in sorted(partitions.items()):
        name = topics.name_of(topic_id)
        if name is not None:
            rows.append(string(name, False) + INT32.pack(len(indexes)) + b"".join(map(INT32.pack, sorted(indexes))))
    return INT16.pack(0) + INT32.pack(len(rows)) + b"".join(rows) + _NO_USER_DATA


def by_id(partitions: Mapping[str, frozenset[int]], topics: Topics) -> Partitions:
    found = {}
    for name, indexes in partitions.items():
        view = topics.get(name)
        if view is not None and indexes:
            found[view.topic_id] = indexes
    return found


def _read_partitions(reader: Reader) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for _ in reader.array(6):
        name = reader.string()
        found[name] = found.get(name, frozenset()) | {reader.int32() for _ in reader.array(4)}
    return found
