"""The history checker: what producers were promised, what readers saw, and what the log holds at the end.

Every record carries a value of its own: the producer's name and a number that goes up by one. Decides only
whether the three accounts agree; how they came about is the test's business.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class Value(NamedTuple):
    producer: str
    number: int

    def encode(self) -> bytes:
        return f"{self.producer}:{self.number}".encode()

    @classmethod
    def decode(cls, data: bytes) -> "Value":
        producer, number = data.decode().split(":")
        return cls(producer, int(number))


class Seen(NamedTuple):
    """One record at one place: acknowledged to a producer, polled by a reader, or read back at the end."""

    partition: int
    offset: int
    value: Value


def problems(acked: Iterable[Seen], polled: Iterable[Seen], log: Iterable[Seen]) -> list[str]:
    """Every way in which the accounts contradict each other; empty means nothing lost, doubled, reordered."""
    log = list(log)
    return [
        *_gaps(log),
        *_duplicates(log),
        *_reordered(log),
        *_not_in_log(log, acked, "lost: acknowledged"),
        *_not_in_log(log, polled, "inconsistent: a reader saw"),
    ]


def _gaps(log: list[Seen]) -> list[str]:
    offsets = defaultdict(list)
    for seen in log:
        offsets[seen.partition].append(seen.offset)
    return [
        f"gap: partition {partition} does not count 0, 1, 2, …"
        for partition, found in offsets.items()
        if found != list(range(len(found)))
    ]


def _duplicates(log: list[Seen]) -> list[str]:
    places = defaultdict(list)
    for seen in log:
        places[seen.value].append((seen.partition, seen.offset))
    return [f"duplicate: {value} stands at {found}" for value, found in places.items() if len(found) > 1]


def _reordered(log: list[Seen]) -> list[str]:
    """Within a partition, what one producer sent later stands later."""
    last: dict[tuple[int, str], int] = {}
    found = []
    for seen in log:
        key = (seen.partition, seen.value.producer)
        if seen.value.number < last.get(key, -1):
            found.append(f"reordered: {seen} stands after number {last[key]}")
        last[key] = max(seen.value.number, last.get(key, -1))
    return found


def _not_in_log(log: list[Seen], claims: Iterable[Seen], what: str) -> list[str]:
    held = {(seen.partition, seen.offset): seen.value for seen in log}
    return [
        f"{what} {claim}, the log has {held.get((claim.partition, claim.offset))}"
        for claim in claims
        if held.get((claim.partition, claim.offset)) != claim.value
    ]
