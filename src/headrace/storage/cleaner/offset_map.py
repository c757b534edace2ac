"""Maps each key in the dirty part of a log to the offset of its last record, in bounded memory.

Stores the keys themselves, so that a hash collision cannot drop a record. When the memory is full, the caller
compacts up to the last offset in the map and continues in the next run.
"""

from collections.abc import Iterator

MIB = 1024 * 1024

# As Kafka's log.cleaner.dedupe.buffer.size. Each run rewrites the whole log, so fewer, larger runs are better. 128 MiB
# hold 900,000 keys of 16 bytes, and a process compacts one log at a time.
KEY_MAP_BYTES_MAX = 128 * MIB

# Memory of an entry besides the bytes of its key: measured 112 bytes (object headers, offset, hash table), up to 130
# right after a table has grown.
ENTRY_BYTES = 128

# One large table would block the event loop for 10 ms when it grows and for 20 ms when it is freed. A thousand small
# ones do both in pieces of 0.1 ms.
SHARDS = 1024
_MASK = SHARDS - 1
SHARDS_PER_SLICE = 32


class OffsetMap:
    __slots__ = ("_count", "_room", "_shards", "latest")

    def __init__(self, bytes_max: int = KEY_MAP_BYTES_MAX) -> None:
        self._room = bytes_max
        self._count = 0
        self._shards: list[dict[bytes, int]] = [{} for _ in range(SHARDS)]
        # Last offset that the map covers: records past it are kept, whatever their key.
        self.latest = -1

    def __len__(self) -> int:
        return self._count

    def put(self, key: bytes, offset: int) -> bool:
        """Maps the key to the offset. Returns False, without a change, if the memory has no space for another key."""
        shard = self._shards[hash(key) & _MASK]
        if key not in shard:
            cost = len(key) + ENTRY_BYTES
            # The first key is always added, so that every run makes progress.
            if cost > self._room and self._count:
                return False
            self._room -= cost
            self._count += 1
        shard[key] = offset
        self.latest = offset
        return True

    def get(self, key: bytes) -> int:
        """Returns the last offset of the key, -1 if it has none."""
        return self._shards[hash(key) & _MASK].get(key, -1)

    def clear(self) -> Iterator[None]:
        """Frees the map, a slice per step. It must not be used afterwards."""
        while self._shards:
            del self._shards[-SHARDS_PER_SLICE:]
            yield None
