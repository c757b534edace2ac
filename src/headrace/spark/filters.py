"""What pushed-down filters allow a batch read to leave out: partitions, and offsets before or behind.

Only ever narrows, and Spark applies every filter again, so what is not understood costs time and not rows.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from headrace.model.ids import TopicPartition
from headrace.spark.locating import Locator
from headrace.spark.positions import Positions


class Narrowing:
    def __init__(self) -> None:
        self._choices: list[tuple[str, frozenset[Any]]] = []
        self._first = 0
        self._end: int | None = None
        self._from_ms: int | None = None

    def take(self, filters: Iterable[Filter]) -> None:
        for one in filters:
            column = getattr(one, "attribute", ())
            if column in (("topic",), ("partition",)):
                self._take_choice(one, column[0])
            elif column == ("offset",):
                self._take_offset(one)
            elif column == ("timestamp",):
                self._take_time(one)

    def _take_choice(self, one: Any, column: str) -> None:
        if isinstance(one, EqualTo):
            self._choices.append((column, frozenset({one.value})))
        elif isinstance(one, In):
            self._choices.append((column, frozenset(one.value)))

    def _take_offset(self, one: Any) -> None:
        if isinstance(one, (EqualTo, GreaterThanOrEqual)):
            self._first = max(self._first, one.value)
        elif isinstance(one, GreaterThan):
            self._first = max(self._first, one.value + 1)
        if isinstance(one, (EqualTo, LessThanOrEqual)):
            self._end = min(one.value + 1, self._end if self._end is not None else one.value + 1)
        elif isinstance(one, LessThan):
            self._end = min(one.value, self._end if self._end is not None else one.value)

    def _take_time(self, one: Any) -> None:
        """Only the earlier side: records before the first one that is new enough are all older, later ones may be."""
        if isinstance(one, (EqualTo, GreaterThan, GreaterThanOrEqual)) and isinstance(one.value, datetime):
            from_ms = int(one.value.timestamp() * 1000)
            self._from_ms = max(self._from_ms or 0, from_ms)

    def partitions(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [one for one in partitions if all(getattr(one, column) in chosen for column, chosen in self._choices)]

    def offsets(self, locator: Locator, starts: Positions, ends: Positions) -> tuple[Positions, Positions]:
        starts = {one: max(start, self._first) for one, start in starts.items()}
        if self._end is not None:
            ends = {one: min(end, self._end) for one, end in ends.items()}
        if self._from_ms is not None and self._from_ms > 0:
            found: Mapping[TopicPartition, int | None] = locator.at(dict.fromkeys(starts, self._from_ms))
            starts = {one: max(start, _or_end(found[one], ends[one])) for one, start in starts.items()}
        return starts, ends


def _or_end(offset: int | None, end: int) -> int:
    return end if offset is None else offset
