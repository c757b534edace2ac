"""Which partition of an internal topic a name belongs to: every client and broker must agree on it."""

from functools import lru_cache

# Groups that are busy at the same time: each commit and each heartbeat asks again for one of them.
NAMES_MAX = 16 * 1024


def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java, over UTF-16 units, as a signed 32-bit number."""
    value = 0
    for unit in _units(text):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _units(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [data[at] << 8 | data[at + 1] for at in range(0, len(data), 2)]


@lru_cache(NAMES_MAX)
def partition_for(name: str, partitions: int) -> int:
    """Kafka's own absolute value: the lowest number has no positive twin, so it becomes 0."""
    value = java_string_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
