"""Compares a stream of records before and after its delivery: lost, duplicated, unexpected and reordered records.

Exactly once: none of them. At least once: duplicates are allowed, as re-reads of a stretch. At most once: losses are
allowed.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delivery:
    """Values by what happened to them. Empty tuples throughout mean exactly once and in order."""

    lost: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()
    strange: tuple[int, ...] = ()  # arrived, but was never sent
    reordered: tuple[int, ...] = ()  # arrived for the first time after a later value of the same key

    # Order is a separate guarantee: see `reordered`.

    @property
    def is_at_least_once(self) -> bool:
        return not (self.lost or self.strange)

    @property
    def is_at_most_once(self) -> bool:
        return not (self.repeated or self.strange)

    @property
    def is_exactly_once(self) -> bool:
        return self.is_at_least_once and self.is_at_most_once


def delivery(sent: Mapping[Hashable, Sequence[int]], received: Mapping[Hashable, Iterable[int]]) -> Delivery:
    """Compares sent with received values, both by key and in order. Each value is sent once."""
    keys = {value: key for key, values in sent.items() for value in values}
    arrived = [(key, value) for key, values in received.items() for value in values]
    counts = Counter(value for _, value in arrived)
    return Delivery(
        lost=tuple(value for value in keys if value not in counts),
        repeated=tuple(value for value, number in counts.items() if number > 1),
        strange=tuple(value for key, value in arrived if value not in keys or keys[value] != key),
        reordered=tuple(
            value for key, values in received.items() for value in _late(list(sent.get(key, ())), list(values))
        ),
    )


def _late(sent: list[int], received: list[int]) -> Iterable[int]:
    rank = {value: number for number, value in enumerate(sent)}
    highest, met = -1, set[int]()
    for value in received:
        if value in rank and value not in met and rank[value] < highest:
            yield value
        met.add(value)
        highest = max(highest, rank.get(value, -1))
