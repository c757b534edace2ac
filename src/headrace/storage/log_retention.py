"""Selects the segments to delete: by age, by size, and below the log start offset. Pure; performs no I/O.

Segments are deleted from the oldest on, because a log is contiguous, and never past the high watermark, because
records that are not replicated must be kept. Age and size delete no record that the topic's archive still lacks.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.config.values import LogConfig

NO_LIMIT = -1


class SegmentSummary(Protocol):
    """Properties of a segment that retention compares."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def max_timestamp(self) -> int:
        """Highest timestamp of its records; negative if none of them has one."""

    @property
    def modified_ms(self) -> int:
        """Last write to its file, in milliseconds."""


class DeletableSegments(NamedTuple):
    """The first `segments` of the log are deleted, so that it begins at `log_start_offset`.

    If that is all of them, the active segment is included and the caller rolls a new one first.
    """

    segments: int
    log_start_offset: int
    reason: str


NOTHING = DeletableSegments(0, 0, "")


def expired_segments(
    segments: Sequence[SegmentSummary],
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    config: LogConfig,
    now_ms: int,
    archived_to: int | None = None,
) -> DeletableSegments:
    """Returns the longest deletable segment prefix and the retention rule that selected it."""
    removable = _below_watermark(segments, log_end_offset, high_watermark)
    verdicts = [(_before_log_start(segments, removable, log_start_offset), "it lies before the log's start")]
    if config.deletes:
        if archived_to is not None:
            removable = _below_watermark(segments, log_end_offset, min(high_watermark, archived_to))
        verdicts.append((_over_size(segments, removable, config.retention_bytes), "retention.bytes is exceeded"))
        verdicts.append((_too_old(segments, removable, config.retention_ms, now_ms), "retention.ms has passed"))
    count, reason = max(verdicts, key=lambda verdict: verdict[0])
    if not count:
        return NOTHING
    upper_bound = segments[count].base_offset if count < len(segments) else log_end_offset
    return DeletableSegments(count, max(log_start_offset, upper_bound), reason)


def _below_watermark(segments: Sequence[SegmentSummary], log_end_offset: int, high_watermark: int) -> int:
    """Returns how many of the oldest segments lie wholly below the high watermark. Excludes an empty active segment."""
    ends = [segment.base_offset for segment in segments[1:]] + [log_end_offset]
    count = next((number for number, end in enumerate(ends) if end > high_watermark), len(ends))
    return count - 1 if count == len(segments) and not segments[-1].size else count


def _before_log_start(segments: Sequence[SegmentSummary], removable: int, log_start_offset: int) -> int:
    count = 0
    while count < removable and count + 1 < len(segments) and segments[count + 1].base_offset <= log_start_offset:
        count += 1
    return count


def _over_size(segments: Sequence[SegmentSummary], removable: int, retention_bytes: int) -> int:
    """Returns the most segments whose deletion leaves at least `retention_bytes`, as in Kafka."""
    if retention_bytes == NO_LIMIT:
        return 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    while count < removable and excess >= segments[count].size:
        excess -= segments[count].size
        count += 1
    return count


def _too_old(segments: Sequence[SegmentSummary], removable: int, retention_ms: int, now_ms: int) -> int:
    if retention_ms == NO_LIMIT:
        return 0
    count = 0
    while count < removable and now_ms - _youngest_ms(segments[count]) > retention_ms:
        count += 1
    return count


def _youngest_ms(segment: SegmentSummary) -> int:
    # Records without a timestamp age from the last append, as in Kafka, so that none is deleted too early.
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms
