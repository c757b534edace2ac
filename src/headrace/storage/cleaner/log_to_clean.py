"""Selects the part of a log to compact, its priority, and the segments to merge. Pure; performs no I/O.

The log up to `first_dirty` was compacted before and has one record per key; keys repeat from there to `end`. Excluded
are the active segment, offsets past the last stable offset (an open transaction bounds them), what
`min.compaction.lag.ms` protects, and a corrupt segment with everything after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from headrace.config.values import LogConfig
from headrace.storage.segment.log_segment import RELATIVE_OFFSET_MAX, LogSegment

# A swap renames about five files per merged segment, in one step of the event loop: 64 segments take 3 ms.
GROUP_SEGMENTS_MAX = 64

AnySegment = TypeVar("AnySegment", bound=LogSegment)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogToClean:
    """The dirty part of a log that may be compacted, and its priority."""

    first_dirty: int
    end: int
    dirty_bytes: int
    clean_bytes: int
    overdue_ms: int  # how far its oldest record exceeds max.compaction.lag.ms

    @property
    def dirty_ratio(self) -> float:
        total = self.dirty_bytes + self.clean_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        if not self.dirty_bytes:
            return False
        return self.overdue_ms > 0 or self.dirty_ratio > config.min_cleanable_dirty_ratio


def cleanable(
    segments: Sequence[LogSegment],
    *,
    cleaned_to: int,
    log_start_offset: int,
    stable_offset: int,
    config: LogConfig,
    now_ms: int,
) -> LogToClean:
    """Returns the part to compact. `cleaned_to` is the checkpoint of the last compaction.

    `stable_offset` is the last stable offset, and never past the recovery point: a segment must not be closed while
    its sync is pending.
    """
    if not log_start_offset <= cleaned_to <= segments[-1].next_offset:
        cleaned_to = log_start_offset  # the checkpoint is of another log: all of this one is dirty
    first_dirty = cleaned_to
    end = _end_of_cleanable(segments, first_dirty, stable_offset, config, now_ms)
    below = [segment for segment in segments[:-1] if segment.base_offset < end]
    dirty = [segment for segment in below if segment.next_offset > first_dirty]
    return LogToClean(
        first_dirty=first_dirty,
        end=max(end, first_dirty),
        dirty_bytes=sum(segment.size for segment in dirty),
        clean_bytes=sum(segment.size for segment in below) - sum(segment.size for segment in dirty),
        overdue_ms=_overdue_ms(segments, first_dirty, config.max_compaction_lag_ms, now_ms),
    )


def _end_of_cleanable(
    segments: Sequence[LogSegment], first_dirty: int, stable_offset: int, config: LogConfig, now_ms: int
) -> int:
    """Returns the first offset that must not be compacted.

    It is always the base of a segment, because segments are compacted as a whole.
    """
    youngest_ms = now_ms - config.min_compaction_lag_ms
    for segment, following in pairwise(segments):
        is_dirty = following.base_offset > first_dirty
        is_too_young = config.min_compaction_lag_ms > 0 and segment.max_timestamp > youngest_ms
        if segment.holes or following.base_offset > stable_offset or (is_dirty and is_too_young):
            return segment.base_offset
    return segments[-1].base_offset


def _overdue_ms(segments: Sequence[LogSegment], first_dirty: int, lag_max_ms: int, now_ms: int) -> int:
    first_timestamps = [
        segment.first_timestamp
        for segment in segments[:-1]
        if segment.next_offset > first_dirty and segment.first_timestamp > 0
    ]
    return max(0, now_ms - lag_max_ms - min(first_timestamps, default=now_ms))


def merge_groups(segments: Sequence[AnySegment], *, segment_bytes: int, index_bytes: int) -> list[list[AnySegment]]:
    """Groups neighboring segments that fit into one, so that compaction does not leave many small ones."""
    groups: list[list[AnySegment]] = []
    for segment in segments:
        if groups and _fits(groups[-1], segment, segment_bytes, index_bytes):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(group: Sequence[LogSegment], segment: LogSegment, segment_bytes: int, index_bytes: int) -> bool:
    merged = [*group, segment]
    return (
        len(merged) <= GROUP_SEGMENTS_MAX
        and sum(one.size for one in merged) <= segment_bytes
        and sum(len(one.offset_index) * one.offset_index.ENTRY.size for one in merged) <= index_bytes
        and sum(len(one.time_index) * one.time_index.ENTRY.size for one in merged) <= index_bytes
        and segment.next_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
    )
