"""Kafka's default partitioner (murmur2 of the key) for a whole column.

Rows of one key are in the same partition, whether this module or a Kafka client with Java's hash writes them.
"""

from typing import Any

import numpy as np

SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
# Longer keys are rare; a loop over their words for the whole column would cost more than hashing them one by one.
_COLUMN_KEY_BYTES_MAX = 64


def murmur2(key: bytes) -> int:
    """Returns the hash of one key, as Java's client computes it."""
    length = len(key)
    hashed = SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ word
    if whole != length:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def hash_column(keys: Any) -> Any:
    """Returns the hashes of an Arrow array of binary keys; those of nulls are undefined."""
    edges = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    body = keys.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(1, np.uint8)
    starts, lengths = edges[:-1], edges[1:] - edges[:-1]
    hashes = np.zeros(len(keys), dtype=np.uint32)
    short = np.flatnonzero(lengths <= _COLUMN_KEY_BYTES_MAX)
    hashes[short] = _hash_short(data, starts[short], lengths[short])
    for row in np.flatnonzero(lengths > _COLUMN_KEY_BYTES_MAX):
        hashes[row] = murmur2(data[starts[row] : edges[row + 1]].tobytes())
    return hashes


def _hash_short(data: Any, starts: Any, lengths: Any) -> Any:
    """Hashes word by word, over all rows that have such a word. 32-bit arithmetic wraps, as in Java."""
    m = np.uint32(_M)
    hashes = np.uint32(SEED) ^ lengths.astype(np.uint32)
    for at in range(0, int(lengths.max(initial=0)), 4):
        whole = np.flatnonzero(lengths >= at + 4)
        word = _bytes_at(data, starts[whole] + at, 4) * m
        word = (word ^ word >> np.uint32(24)) * m
        hashes[whole] = hashes[whole] * m ^ word
        for rest in (1, 2, 3):
            cut = np.flatnonzero(lengths == at + rest)
            if len(cut):
                hashes[cut] = (hashes[cut] ^ _bytes_at(data, starts[cut] + at, rest)) * m
    hashes = (hashes ^ hashes >> np.uint32(13)) * m
    return hashes ^ hashes >> np.uint32(15)


def _bytes_at(data: Any, positions: Any, count: int) -> Any:
    word = data[positions].astype(np.uint32)
    for index in range(1, count):
        word |= data[positions + index].astype(np.uint32) << np.uint32(8 * index)
    return word


def partitions_of(hashes: Any, count: int) -> Any:
    """Returns the partitions. As Java, clears the sign bit before the division."""
    return (hashes & np.uint32(0x7FFFFFFF)) % np.uint32(count)
