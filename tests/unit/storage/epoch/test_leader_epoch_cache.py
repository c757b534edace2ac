"""Leader epochs: where each began, what a follower is told (rule 18), and what the file holds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import CorruptLog
from headrace.storage.epoch.leader_epoch_cache import LeaderEpochFileCache
from headrace.storage.io.memory_file_system import MemoryFiles

DIRECTORY = "data/t-0"
PATH = f"{DIRECTORY}/leader-epoch-checkpoint"

ascending = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), max_size=8).map(
    lambda pairs: list(zip(sorted({e for e, _ in pairs}), sorted({s for _, s in pairs}), strict=False))
)


def epochs_with(*entries: tuple[int, int], files: MemoryFiles | None = None) -> LeaderEpochFileCache:
    epochs = LeaderEpochFileCache(files or MemoryFiles(), DIRECTORY)
    for epoch, start in entries:
        epochs.assign(epoch, start)
    return epochs


def test_the_bytes_are_those_that_kafka_writes() -> None:
    files = MemoryFiles()
    epochs_with((0, 0), (3, 120), files=files)
    assert files.read(PATH) == b"0\n2\n0 0\n3 120\n"


def test_rule_17_an_epoch_is_on_disk_when_it_is_assigned() -> None:
    files = MemoryFiles()
    epochs_with((0, 0), (2, 10), files=files)
    assert LeaderEpochFileCache(files, DIRECTORY).entries() == [(0, 0), (2, 10)]


def test_assigning_the_current_epoch_again_writes_nothing() -> None:
    files = MemoryFiles()
    epochs = epochs_with((1, 5), files=files)
    files.remove(PATH)
    epochs.assign(1, 9)
    assert not files.exists(PATH)
    assert epochs.entries() == [(1, 5)]


def test_a_log_without_epochs_has_no_latest() -> None:
    assert epochs_with().latest == -1


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        pytest.param(5, (5, 60), id="the latest ends with the log"),
        pytest.param(2, (2, 30), id="an older one ends where the next began"),
        pytest.param(3, (2, 30), id="one that never led gives the one before it"),
        pytest.param(9, (5, 60), id="one still to come gives the latest"),
        pytest.param(0, (0, 10), id="one before the log began ends where the log begins"),
        pytest.param(-1, (-1, -1), id="no epoch, no answer"),
    ],
)
def test_rule_18_the_largest_epoch_not_above_the_asked_one_with_its_end(asked: int, answer: tuple[int, int]) -> None:
    assert epochs_with((1, 10), (2, 20), (5, 30)).end_offset_for(asked, log_end=60) == answer


def test_rule_18_a_log_without_epochs_knows_no_end() -> None:
    assert epochs_with().end_offset_for(3, log_end=60) == (-1, -1)


@given(ascending, st.integers(0, 60))
def test_rule_18_as_by_walking_the_list(entries: list[tuple[int, int]], asked: int) -> None:
    epochs = epochs_with(*entries)
    below = [epoch for epoch, _ in entries if epoch <= asked]
    ends = [start for epoch, start in entries if epoch > asked]
    expected = (below[-1] if below else asked, ends[0] if ends else 1000)
    assert epochs.end_offset_for(asked, log_end=1000) == (expected if entries else (-1, -1))


@given(ascending, st.integers(-5, 510))
def test_the_epoch_of_an_offset_is_the_last_that_began_by_then(entries: list[tuple[int, int]], offset: int) -> None:
    begun = [epoch for epoch, start in entries if start <= offset]
    assert epochs_with(*entries).epoch_of(offset) == (begun[-1] if begun else -1)


def test_an_epoch_that_wrote_nothing_gives_way() -> None:
    assert epochs_with((1, 10), (2, 20), (3, 20)).entries() == [(1, 10), (3, 20)]


def test_epochs_that_a_new_one_contradicts_give_way() -> None:
    assert epochs_with((1, 10), (2, 20), (5, 30), (3, 25)).entries() == [(1, 10), (2, 20), (3, 25)]
    assert epochs_with((1, 10), (2, 20), (3, 5)).entries() == [(3, 5)]


def test_truncating_the_end_forgets_epochs_that_began_there_or_later() -> None:
    epochs = epochs_with((1, 10), (2, 20), (5, 30))
    epochs.truncate_from_end(20)
    assert epochs.entries() == [(1, 10)]
    assert epochs.latest == 1
    epochs.truncate_from_end(0)
    assert epochs.latest == -1


def test_truncating_the_start_keeps_the_epoch_that_was_current_there() -> None:
    epochs = epochs_with((1, 10), (2, 20), (5, 30))
    epochs.truncate_from_start(25)
    assert epochs.entries() == [(2, 25), (5, 30)]
    epochs.truncate_from_start(30)
    assert epochs.entries() == [(5, 30)]


def test_truncating_before_the_start_or_past_the_end_changes_nothing() -> None:
    epochs = epochs_with((1, 10), (2, 20))
    epochs.truncate_from_start(5)
    epochs.truncate_from_end(21)
    assert epochs.entries() == [(1, 10), (2, 20)]


def test_what_truncation_removed_reaches_the_file_with_the_next_flush() -> None:
    files = MemoryFiles()
    epochs = epochs_with((1, 10), (2, 20), files=files)
    epochs.truncate_from_end(20)
    assert LeaderEpochFileCache(files, DIRECTORY).entries() == [(1, 10), (2, 20)]
    epochs.flush()
    assert LeaderEpochFileCache(files, DIRECTORY).entries() == [(1, 10)]
    files.remove(PATH)
    epochs.flush()
    assert not files.exists(PATH), "nothing to write, nothing written"


@pytest.mark.parametrize("data", [b"0\n1\n1\n", b"0\n1\nx 1\n", b"0\n1\n-1 0\n", b"0\n1\n0 -1\n", b"7\n", b"\xff"])
def test_a_damaged_file_is_corrupt(data: bytes) -> None:
    files = MemoryFiles()
    files.replace(PATH, data)
    with pytest.raises(CorruptLog):
        LeaderEpochFileCache(files, DIRECTORY)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100)), max_size=20))
def test_both_columns_ascend_whatever_is_assigned(entries: list[tuple[int, int]]) -> None:
    files = MemoryFiles()
    epochs = epochs_with(*entries, files=files)
    kept = epochs.entries()
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(kept))
    assert LeaderEpochFileCache(files, DIRECTORY).entries() == kept
