"""Verified byte ranges of a segment, and unreadable offset ranges of a log."""

from bisect import bisect_right
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.storage.log import Log
    from headrace.storage.segment.segment_verifier import CorruptRange


class CheckedRanges:
    """Byte ranges, ascending and disjoint. Most files have one that covers all of it."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, start: int, end: int) -> None:
        ranges = self._ranges
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.insert(bisect_right(ranges, (start, end)), (start, end))
            self._ranges = _merged(ranges)

    def cover(self, start: int, end: int) -> bool:
        for checked_start, checked_end in reversed(self._ranges):
            if checked_start <= start:
                return end <= checked_end
        return start >= end

    def end_from(self, start: int) -> int:
        """Returns the end of the verified range that contains `start`; `start` if there is none."""
        for checked_start, checked_end in reversed(self._ranges):
            if checked_start <= start:
                return max(start, checked_end)
        return start

    def cut(self, position: int) -> None:
        """Truncates the ranges to a file of this length."""
        self._ranges = [(start, min(end, position)) for start, end in self._ranges if start < position]

    def forget(self, start: int, end: int) -> None:
        """Marks the bytes between these two batch boundaries as unverified."""
        before = [(one, min(stop, start)) for one, stop in self._ranges if one < start]
        self._ranges = before + [(max(one, end), stop) for one, stop in self._ranges if stop > end]

    def clear(self) -> None:
        self._ranges = []


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in ranges:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def holes_in(log: "Log") -> "Iterator[CorruptRange]":
    """Yields the unreadable offset ranges that are known: of batches that have been verified so far."""
    return chain(log.holes, *(segment.holes for segment in log.segments))


def damaged_from(log: "Log") -> int | None:
    """Returns the first offset of the known unreadable ranges that reach the log start; None if there are none."""
    return min((hole.base_offset for hole in holes_in(log) if hole.next_offset >= log.log_start_offset), default=None)
