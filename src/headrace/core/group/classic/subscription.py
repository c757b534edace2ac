"""Decodes the topics of a classic consumer's subscription.

The coordinator needs only the topics. Owned partitions, generation and rack behind them are for the group's leader.

    ┌─────────┬────────────────┬─────────────────────────────────────────┐
    │ version │ topics         │ user data, owned partitions, …          │
    │ int16   │ array of string│                                         │
    └─────────┴────────────────┴─────────────────────────────────────────┘
"""

from struct import Struct
from struct import error as StructError

_HEADER = Struct(">hi")
_LENGTH = Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Returns the topics; None if the bytes are no consumer subscription."""
    try:
        version, count = _HEADER.unpack_from(metadata)
        position = _HEADER.size
        if version < 0 or count < 0 or count * _LENGTH.size > len(metadata) - position:
            return None
        topics = set()
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            name = metadata[position : position + length]
            if length < 0 or len(name) != length:
                return None
            topics.add(name.decode())
            position += length
    except (StructError, UnicodeDecodeError):
        return None
    return frozenset(topics)
