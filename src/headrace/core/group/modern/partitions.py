"""Arithmetic on sets of partitions of many topics. An empty set never stays in a mapping."""

from collections.abc import Callable, Iterable
from uuid import UUID

from headrace.core.group.modern.values import Partitions


def union(one: Partitions, other: Partitions) -> Partitions:
    return {topic: one.get(topic, frozenset()) | other.get(topic, frozenset()) for topic in {**one, **other}}


def intersection(one: Partitions, other: Partitions) -> Partitions:
    return _without_empty((topic, indexes & other.get(topic, frozenset())) for topic, indexes in one.items())


def difference(one: Partitions, other: Partitions) -> Partitions:
    return _without_empty((topic, indexes - other.get(topic, frozenset())) for topic, indexes in one.items())


def select(one: Partitions, accepts: Callable[[UUID, int], bool]) -> Partitions:
    return _without_empty(
        (topic, frozenset(index for index in indexes if accepts(topic, index))) for topic, indexes in one.items()
    )


def overlap(one: Partitions, other: Partitions) -> bool:
    return any(not indexes.isdisjoint(other.get(topic, frozenset())) for topic, indexes in one.items())


def is_within(one: Partitions, other: Partitions) -> bool:
    return all(indexes <= other.get(topic, frozenset()) for topic, indexes in one.items())


def gathered(pairs: Iterable[tuple[UUID, int]]) -> Partitions:
    indexes: dict[UUID, set[int]] = {}
    for topic, index in pairs:
        indexes.setdefault(topic, set()).add(index)
    return {topic: frozenset(found) for topic, found in indexes.items()}


def pairs(partitions: Partitions) -> Iterable[tuple[UUID, int]]:
    return ((topic, index) for topic, indexes in partitions.items() for index in indexes)


def _without_empty(rows: Iterable[tuple[UUID, frozenset[int]]]) -> Partitions:
    return {topic: indexes for topic, indexes in rows if indexes}
