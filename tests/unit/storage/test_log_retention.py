"""Which segments go: by age, by size, by the log's start; and which never do."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.values import LogConfig
from headrace.storage.io.file_system import FileSystem, OsFileSystem
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.log import Log
from headrace.storage.log_retention import NOTHING, DeletableSegments, expired_segments
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import append

NOW = 100_000
FOREVER = replace(LogConfig(), retention_ms=-1, retention_bytes=-1)


@dataclass
class Facts:
    base_offset: int
    size: int = 100
    max_timestamp: int = NOW
    modified_ms: int = NOW


def segments(*timestamps: int, size: int = 100) -> list[Facts]:
    return [Facts(number * 10, size, timestamp) for number, timestamp in enumerate(timestamps)]


def expired(
    of: list[Facts],
    config: LogConfig,
    *,
    log_start: int = 0,
    high_watermark: int | None = None,
    archived_to: int | None = None,
) -> DeletableSegments:
    log_end = of[-1].base_offset + (10 if of[-1].size else 0)
    return expired_segments(
        of,
        log_start_offset=log_start,
        log_end_offset=log_end,
        high_watermark=log_end if high_watermark is None else high_watermark,
        config=config,
        now_ms=NOW,
        archived_to=archived_to,
    )


@pytest.mark.parametrize("limit", [{"retention_ms": 1_000}, {"retention_bytes": 0}])
@pytest.mark.parametrize(("archived_to", "gone"), [(0, 0), (19, 1), (20, 2), (1_000, 3)])
def test_age_and_size_remove_nothing_that_is_not_archived(limit: dict[str, int], archived_to: int, gone: int) -> None:
    assert expired(segments(0, 0, 0), replace(FOREVER, **limit), archived_to=archived_to).segments == gone


def test_what_lies_before_the_logs_start_goes_archived_or_not() -> None:
    assert expired(segments(0, 0, 0), FOREVER, log_start=20, archived_to=0).segments == 2


def test_nothing_goes_without_limits() -> None:
    assert expired(segments(0, 0, 0), FOREVER) == NOTHING


def test_segments_whose_youngest_record_is_too_old_go() -> None:
    config = replace(FOREVER, retention_ms=1_000)
    found = expired(segments(NOW - 5_000, NOW - 1_001, NOW - 1_000, NOW), config)
    assert (found.segments, found.log_start_offset) == (2, 20)
    assert "retention.ms" in found.reason


def test_a_young_segment_protects_the_old_ones_behind_it() -> None:
    config = replace(FOREVER, retention_ms=1_000)
    assert expired(segments(0, NOW, 0), config).segments == 1


def test_records_without_timestamp_age_from_the_last_append() -> None:
    config = replace(FOREVER, retention_ms=1_000)
    of = [Facts(0, max_timestamp=-1, modified_ms=NOW - 1_001), Facts(10, max_timestamp=-1, modified_ms=NOW - 1_000)]
    assert expired(of, config).segments == 1


def test_the_active_segment_goes_too_when_all_of_it_is_too_old() -> None:
    config = replace(FOREVER, retention_ms=1_000)
    assert expired(segments(0, 0), config) == DeletableSegments(2, 20, "retention.ms has passed")


def test_an_empty_active_segment_stays() -> None:
    config = replace(FOREVER, retention_ms=1_000)
    of = [*segments(0, 0), Facts(20, size=0, max_timestamp=-1, modified_ms=0)]
    assert expired(of, config).segments == 2


@pytest.mark.parametrize(
    ("retention_bytes", "gone"), [(400, 0), (399, 0), (301, 0), (300, 1), (201, 1), (200, 2), (0, 4), (-1, 0)]
)
def test_as_many_go_as_leave_at_least_the_bytes_to_be_kept(retention_bytes: int, gone: int) -> None:
    config = replace(FOREVER, retention_bytes=retention_bytes)
    assert expired(segments(NOW, NOW, NOW, NOW), config).segments == gone


def test_segments_before_the_logs_start_go_even_from_a_log_that_is_only_compacted() -> None:
    config = replace(LogConfig(), cleanup_policy=frozenset({"compact"}), retention_ms=1, retention_bytes=1)
    of = segments(0, 0, 0)
    assert expired(of, config, log_start=9) == NOTHING
    found = expired(of, config, log_start=15)
    assert (found.segments, found.log_start_offset) == (1, 15)


def test_compact_and_delete_does_both() -> None:
    config = replace(LogConfig(), cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1_000)
    assert expired(segments(0, 0, NOW), config).segments == 2


def test_nothing_past_the_high_watermark_goes() -> None:
    config = replace(FOREVER, retention_ms=1_000)
    assert expired(segments(0, 0, 0), config, high_watermark=19).segments == 1
    assert expired(segments(0, 0, 0), config, high_watermark=20).segments == 2
    assert expired(segments(0, 0, 0), config, high_watermark=9) == NOTHING


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(-1, NOW)), min_size=1, max_size=8),
    st.integers(-1, 1_000),
    st.integers(-1, NOW),
    st.integers(0, 80),
    st.integers(0, 80),
)
def test_what_goes_is_a_prefix_that_leaves_what_must_be_kept(
    facts: list[tuple[int, int]], retention_bytes: int, retention_ms: int, log_start: int, high_watermark: int
) -> None:
    of = [Facts(number * 10, size, timestamp) for number, (size, timestamp) in enumerate(facts)]
    config = replace(LogConfig(), retention_bytes=retention_bytes, retention_ms=retention_ms)
    log_start = min(log_start, len(of) * 10)
    found = expired_segments(
        of,
        log_start_offset=log_start,
        log_end_offset=len(of) * 10,
        high_watermark=high_watermark,
        config=config,
        now_ms=NOW,
    )
    assert 0 <= found.segments <= len(of)
    if found.segments:
        assert log_start <= found.log_start_offset
        assert found.segments * 10 <= high_watermark
    if "bytes" in found.reason:
        assert sum(segment.size for segment in of[found.segments :]) >= retention_bytes
    if "ms" in found.reason:
        assert all(NOW - segment.max_timestamp > retention_ms for segment in of[: found.segments])


@pytest.mark.parametrize("kind", ["simulated", "memory", "disk"])
def test_record_without_timestamp_in_an_old_segment_is_kept(kind: str, tmp_path: Path) -> None:
    """The segment was created long ago; the record was appended now."""
    files: FileSystem = {"simulated": SimFiles, "memory": MemoryFiles, "disk": OsFileSystem}[kind]()
    now_ms = int(time.time() * 1000)
    if isinstance(files, SimFiles):
        files.make_dir(str(tmp_path))
        files.wall_ms = lambda: now_ms
    log = Log.create(files, f"{tmp_path}/t-0", FOREVER, now_ms=0)
    append(log, "a", timestamp=-1)
    config = replace(FOREVER, retention_ms=3_600_000)

    def expired_at(now_ms: int) -> int:
        return expired_segments(
            log.segments, log_start_offset=0, log_end_offset=1, high_watermark=1, config=config, now_ms=now_ms
        ).segments

    assert (expired_at(now_ms), expired_at(now_ms + 2 * 3_600_000)) == (0, 1)
    log.close()
