"""Indexes that are rebuilt in a thread while the log is used: the result is that of a rebuild at once."""

from collections.abc import Callable

import pytest

from headrace.model.errors import CorruptLog
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.log_truncation import truncate_log
from headrace.storage.segment import log_segment as segment_module
from headrace.storage.segment.index_rebuild import IndexRebuild, IndexRebuilding
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_verifier import CorruptRange, is_offset_entry_valid
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, new_log, read_values

DIRECTORY = "/data/t-0"
STEM = f"{DIRECTORY}/00000000000000000000"
VALUES = [f"value {number}" for number in range(40)]


def closed_log(files: SimFiles) -> None:
    files.make_dir("/data")
    log = new_log(files)
    for number, value in enumerate(VALUES):
        append(log, value, timestamp=1_000 + 10 * number)
    log.close()


def opened(files: SimFiles) -> Log:
    return open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=40, clean=True), now_ms=0)


def flip_index(files: SimFiles) -> None:
    """All entries but the last, which is checked when the index is loaded."""
    for byte in range(7, len(files.read(f"{STEM}.index")) - 8, 8):
        files.flip_bit(f"{STEM}.index", byte=byte)


def flip_time_index(files: SimFiles) -> None:
    for byte in range(7, len(files.read(f"{STEM}.timeindex")), 12):
        files.flip_bit(f"{STEM}.timeindex", byte=byte, bit=1)


def flip_batch(files: SimFiles) -> None:
    flip_index(files)
    files.flip_bit(f"{STEM}.log", byte=files.open(f"{STEM}.log", create=False).size // 2)


FAULTS = [flip_index, flip_time_index, flip_batch]


def facts_of(segment: LogSegment) -> tuple[object, ...]:
    return (
        [segment.offset_index.entry(number) for number in range(len(segment.offset_index))],
        [segment.time_index.entry(number) for number in range(len(segment.time_index))],
        segment.offset_index.was_loaded,
        segment.time_index.was_loaded,
        segment.holes,
        segment.next_offset,
        (segment.max_timestamp, segment.max_timestamp_offset),
        (segment.first_timestamp, segment.first_epoch, segment.last_epoch),
        segment.checked._ranges,
        segment._bytes_since_index_entry,
    )


def append_more(log: Log) -> None:
    for number in range(20):
        append(log, f"later {number}", timestamp=5_000 + number)


@pytest.mark.parametrize("fault", FAULTS)
def test_rebuild_in_a_thread_gives_the_indexes_of_a_rebuild_at_once(fault: Callable[[SimFiles], None]) -> None:
    with SimFiles() as files, SimFiles() as others:
        for disk in (files, others):
            closed_log(disk)
            fault(disk)
        log, other = opened(files), opened(others)
        rebuild = IndexRebuild(log.active)
        rebuild.read()
        assert rebuild.fits()
        rebuild.apply()
        other.active.reindex()
        assert facts_of(log.active) == facts_of(other.active)
        for suffix in (".log", ".index", ".timeindex"):
            assert files.read(STEM + suffix) == others.read(STEM + suffix)
        for one in (log, other):
            one.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_batches_that_are_appended_during_a_rebuild_are_indexed(fault: Callable[[SimFiles], None]) -> None:
    with SimFiles() as files:
        closed_log(files)
        fault(files)
        log = opened(files)
        segment = log.active
        rebuild = IndexRebuild(segment)
        append_more(log)
        rebuild.read()
        assert rebuild.fits()
        rebuild.apply()
        entries = [segment.offset_index.entry(number) for number in range(len(segment.offset_index))]
        assert all(is_offset_entry_valid(segment, entry) for entry in entries)
        assert entries == sorted(set(entries))
        assert entries[-1][0] > 50
        assert (segment.max_timestamp, segment.max_timestamp_offset) == (5_019, 59)
        start = segment.holes[-1].next_offset if segment.holes else 0
        assert read_values(log, start) == [*VALUES[start:], *(f"later {number}" for number in range(20))]
        assert bool(segment.holes) is (fault is flip_batch)
        log.close()


def test_read_changes_neither_the_segment_nor_a_file() -> None:
    with SimFiles() as files:
        closed_log(files)
        flip_batch(files)
        log = opened(files)
        before = facts_of(log.active), {name: files.read(f"{DIRECTORY}/{name}") for name in files.list(DIRECTORY)}
        IndexRebuild(log.active).read()
        after = facts_of(log.active), {name: files.read(f"{DIRECTORY}/{name}") for name in files.list(DIRECTORY)}
        assert after == before
        log.close()


def test_rebuild_of_batches_that_were_truncated_does_not_fit() -> None:
    with SimFiles() as files:
        closed_log(files)
        log = opened(files)
        rebuild = IndexRebuild(log.active)
        truncate_log(log, 20, now_ms=0)
        append_more(log)
        rebuild.read()
        assert not rebuild.fits()
        log.close()


class Requests:
    def __init__(self) -> None:
        self.segments: list[LogSegment] = []

    def request(self, segment: LogSegment) -> None:
        self.segments.append(segment)
        raise IndexRebuilding("in progress", _never)


async def _never() -> None: ...


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.read(30, 1, 40),
        lambda log: log.active.translate_offset(30),
        lambda log: log.active.last_boundary(0, log.active.size // 2),
        lambda log: truncate_log(log, 30, now_ms=0),
    ],
    ids=["read", "position", "boundary", "truncation"],
)
def test_index_of_a_large_segment_is_left_to_the_rebuilder(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[Log], object]
) -> None:
    monkeypatch.setattr(segment_module, "REINDEX_AT_ONCE_BYTES", 100)
    with SimFiles() as files:
        closed_log(files)
        flip_index(files)
        log = opened(files)
        requests = Requests()
        log.rebuild_with(requests)
        with pytest.raises(IndexRebuilding):
            use(log)
        assert requests.segments == [log.active]
        assert not log.active.holes
        monkeypatch.setattr(segment_module, "REINDEX_AT_ONCE_BYTES", 1_000_000)
        assert read_values(log) == VALUES, "that of a small one is rebuilt at once"
        log.close()


def test_rolled_segment_has_the_rebuilder_of_its_log() -> None:
    with SimFiles() as files:
        files.make_dir("/data")
        log = new_log(files)
        requests = Requests()
        log.rebuild_with(requests)
        append(log, "x")
        assert log.roll(0).rebuilder is requests
        log.close()


def test_corruption_elsewhere_reads_no_header_for_the_highest_timestamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where timestamps do not ascend, the search would read the headers of the whole segment on the event loop."""
    with SimFiles() as files:
        closed_log(files)
        files.flip_bit(f"{STEM}.log", byte=100)
        log = opened(files)
        refreshed: list[LogSegment] = []
        monkeypatch.setattr(LogSegment, "refresh_max_timestamp", lambda self: refreshed.append(self))
        with pytest.raises(CorruptLog):
            log.read(1, 1, 40)
        assert [(hole.base_offset, hole.next_offset) for hole in log.active.holes] == [(1, 2)]
        assert not refreshed
        log.active.note_hole(CorruptRange(2_900, 2_980, 39, 40, "the batch with the highest timestamp"))
        assert refreshed == [log.active]
        log.close()
