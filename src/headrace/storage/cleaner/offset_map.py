"""The offset of the last record of each key, for the dirty part of a log, within a fixed memory.

Holds the keys themselves: two different keys are never taken for one, whatever they hash to. When the memory is
full the caller cleans up to where the map reaches and comes back for the rest.
"""

from collections.abc import Iterator

MIB = 1024 * 1024

# As Kafka's log.cleaner.dedupe.buffer.size. A round costs a rewrite of the whole log, so fewer, larger rounds are
# better; 128 MiB hold 900,000 keys of 16 bytes, and one log at a time is cleaned in a process.
KEY_MAP_BYTES_MAX = 128 * MIB

# What an entry takes besides the bytes of its key: measured 112 bytes (object heads, offset, hash table), up to
# 130 just after a table has grown.
ENTRY_BYTES = 128

# One big table would stop the loop for 10 ms whenever it grows and for 20 ms when it is dropped; a thousand
# small ones do both in pieces of 0.1 ms.
SHARDS = 1024
_MASK = SHARDS - 1
SHARDS_PER_SLICE = 32


class OffsetMap:
    __slots__ = ("_count", "_room", "_shards", "latest")

    def __init__(self, bytes_max: int = KEY_MAP_BYTES_MAX) -> None:
        self._room = bytes_max
        self._count = 0
        self._shards: list[dict[bytes, int]] = [{} for _ in range(SHARDS)]
        # The last offset that the map speaks of: records past it are kept, whatever their key.
        self.latest = -1

    def __len__(self) -> int:
        return self._count

    def put(self, key: bytes, offset: int) -> bool:
        """Remember the offset; False, and nothing remembered, when there is no room for another key."""
        shard = self._shards[hash(key) & _MASK]
        if key not in shard:
            cost = len(key) + ENTRY_BYTES
            # The first key always goes in: a round that cleans one key still comes to an end some day.
            if cost > self._room and self._count:
                return False
            self._room -= cost
            self._count += 1
        shard[key] = offset
        self.latest = offset
        return True

    def get(self, key: bytes) -> int:
        """Where the key was last seen, -1 if it was not."""
        return self._shards[hash(key) & _MASK].get(key, -1)

    def clear(self) -> Iterator[None]:
        """Let go of everything, a slice at a time. The map is of no use afterwards."""
        while self._shards:
            del self._shards[-SHARDS_PER_SLICE:]
            yield None
