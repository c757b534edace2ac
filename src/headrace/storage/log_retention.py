"""Which segments of a log have had their time: by age, by size, by where the log begins.

Decides only, from facts that it is handed; the log lets the segments go and somebody else removes the files.
Segments go from the oldest on, because a log has no holes; and never past the high watermark, because what is
not replicated cannot be old. Age and size remove nothing that the topic's archive is still to have.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.config.values import LogConfig

NO_LIMIT = -1


class SegmentSummary(Protocol):
    """What a segment tells about itself."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def max_timestamp(self) -> int:
        """Of its records; negative when none of them has one."""

    @property
    def modified_ms(self) -> int:
        """When its file was last written to."""


class DeletableSegments(NamedTuple):
    """The first `segments` of the log go, so that it begins at `log_start_offset`.

    If that is all of them, the active one is among them and a new one has to be rolled first.
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
    """What may go now, and the rule that lets the most of it go."""
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
    """How many of the oldest segments lie wholly below the watermark. An empty active one always stays."""
    ends = [segment.base_offset for segment in segments[1:]] + [log_end_offset]
    count = next((number for number, end in enumerate(ends) if end > high_watermark), len(ends))
    return count - 1 if count == len(segments) and not segments[-1].size else count


def _before_log_start(segments: Sequence[SegmentSummary], removable: int, log_start_offset: int) -> int:
    count = 0
    while count < removable and count + 1 < len(segments) and segments[count + 1].base_offset <= log_start_offset:
        count += 1
    return count


def _over_size(segments: Sequence[SegmentSummary], removable: int, retention_bytes: int) -> int:
    """Only as many as leave at least `retention_bytes`: the limit is what is kept, not what is never passed."""
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
    # Records without a timestamp count from the last append, as in Kafka: none of them is removed too early.
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.modified_ms
