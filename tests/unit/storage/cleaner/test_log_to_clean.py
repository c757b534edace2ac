"""What of a log can be cleaned, when that is due, and which segments merge."""

from dataclasses import dataclass, field, replace

import pytest

from headrace.config.values import LogConfig
from headrace.storage.cleaner.log_to_clean import GROUP_SEGMENTS_MAX, LogToClean, cleanable, merge_groups
from headrace.storage.segment.segment_index import OffsetIndex, TimeIndex

COMPACTED = replace(LogConfig(), cleanup_policy=frozenset({"compact"}))
NOW = 10_000


@dataclass
class FakeIndex:
    ENTRY: object
    count: int = 1

    def __len__(self) -> int:
        return self.count


@dataclass
class FakeSegment:
    """Only the facts."""

    base_offset: int
    next_offset: int
    size: int = 100
    max_timestamp: int = 0
    first_timestamp: int = -1
    holes: list[object] = field(default_factory=list)
    offset_index: FakeIndex = field(default_factory=lambda: FakeIndex(OffsetIndex.ENTRY))
    time_index: FakeIndex = field(default_factory=lambda: FakeIndex(TimeIndex.ENTRY))


def segments(count: int = 5, **fields: int) -> list[FakeSegment]:
    return [FakeSegment(number * 10, number * 10 + 10, **fields) for number in range(count)]


def dirty(of: list[FakeSegment], *, config: LogConfig = COMPACTED, **facts: int) -> LogToClean:
    defaults = {"cleaned_to": 0, "log_start_offset": 0, "stable_offset": 1_000, "now_ms": NOW}
    return cleanable(of, config=config, **(defaults | facts))  # type: ignore[arg-type]


def test_everything_but_the_active_segment_can_be_cleaned() -> None:
    found = dirty(segments(5), cleaned_to=20)
    assert (found.first_dirty, found.end) == (20, 40)
    assert (found.clean_bytes, found.dirty_bytes) == (200, 200)
    assert found.dirty_ratio == 0.5


def test_a_segment_of_which_a_part_is_dirty_counts_as_dirty() -> None:
    found = dirty(segments(5), cleaned_to=25)
    assert (found.first_dirty, found.clean_bytes, found.dirty_bytes) == (25, 200, 200)


@pytest.mark.parametrize(("stable_offset", "end"), [(40, 40), (39, 30), (11, 10), (9, 0)])
def test_only_whole_segments_below_the_last_stable_offset(stable_offset: int, end: int) -> None:
    assert dirty(segments(5), stable_offset=stable_offset).end == end


def test_an_unstable_offset_in_the_clean_part_leaves_nothing_to_do() -> None:
    found = dirty(segments(5), cleaned_to=30, stable_offset=15)
    assert (found.first_dirty, found.end, found.dirty_bytes) == (30, 30, 0)
    assert not found.is_due(COMPACTED)


def test_a_young_segment_and_all_behind_it_wait_for_the_minimum_lag() -> None:
    config = replace(COMPACTED, min_compaction_lag_ms=1_000)
    of = segments(5)
    of[2].max_timestamp = NOW - 999
    assert dirty(of, config=config).end == 20
    of[2].max_timestamp = NOW - 1_000
    assert dirty(of, config=config).end == 40
    of[1].max_timestamp = NOW
    assert dirty(of, config=config, cleaned_to=20).end == 40, "what is clean already is not asked for its age"


def test_a_damaged_segment_and_all_behind_it_are_left_alone() -> None:
    of = segments(5)
    of[3].holes = ["hole"]
    assert dirty(of).end == 30


@pytest.mark.parametrize("cleaned_to", [5, 51])
def test_a_checkpoint_outside_of_the_log_is_forgotten(cleaned_to: int) -> None:
    assert dirty(segments(5), cleaned_to=cleaned_to, log_start_offset=10).first_dirty == 10


def test_it_is_due_when_enough_of_it_is_dirty() -> None:
    config = replace(COMPACTED, min_cleanable_dirty_ratio=0.5)
    assert not dirty(segments(5), cleaned_to=20).is_due(config)
    assert dirty(segments(5), cleaned_to=10).is_due(config)


def test_it_is_due_when_its_oldest_record_has_waited_for_the_maximum_lag() -> None:
    config = replace(COMPACTED, max_compaction_lag_ms=1_000, min_cleanable_dirty_ratio=1.0)
    of = segments(5, first_timestamp=NOW - 1_000)
    assert not dirty(of, config=config).is_due(config)
    of[3].first_timestamp = NOW - 1_001
    found = dirty(of, config=config)
    assert found.overdue_ms == 1
    assert found.is_due(config)
    assert not dirty(of, config=config, cleaned_to=40).is_due(config), "there is nothing to clean"


def test_an_empty_log_is_never_due() -> None:
    found = dirty(segments(1))
    assert found.dirty_ratio == 0.0
    assert not found.is_due(replace(COMPACTED, min_cleanable_dirty_ratio=0.0))


def groups(of: list[FakeSegment], segment_bytes: int = 1_000, index_bytes: int = 1_000) -> list[list[int]]:
    merged = merge_groups(of, segment_bytes=segment_bytes, index_bytes=index_bytes)  # type: ignore[type-var]
    return [[segment.base_offset for segment in group] for group in merged]


def test_neighbours_merge_as_long_as_they_fit() -> None:
    assert groups(segments(5), segment_bytes=200) == [[0, 10], [20, 30], [40]]
    assert groups(segments(2), segment_bytes=199) == [[0], [10]]
    assert groups([], segment_bytes=200) == []


def test_neighbours_merge_as_long_as_their_indexes_fit() -> None:
    assert groups(segments(3), index_bytes=2 * TimeIndex.ENTRY.size) == [[0, 10], [20]]


def test_a_merged_segment_spans_no_more_offsets_than_an_index_can_tell() -> None:
    of = [FakeSegment(0, 10), FakeSegment(2**31 - 1, 2**31), FakeSegment(2**31, 2**31 + 1)]
    assert groups(of) == [[0, 2**31 - 1], [2**31]]


def test_no_more_segments_merge_than_can_be_renamed_in_one_step() -> None:
    assert [len(group) for group in groups(segments(GROUP_SEGMENTS_MAX + 1, size=1), index_bytes=10_000)] == [
        GROUP_SEGMENTS_MAX,
        1,
    ]
