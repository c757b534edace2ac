"""Opening a folder again: what was synced is there, torn tails are cut, damage below the checkpoint stays visible."""

import logging
from dataclasses import replace

import pytest

from headrace.model.errors import CorruptLog
from headrace.storage.io.file_system import FileSystem
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.io.stepwise import run_through
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.timestamp_lookup import offset_at_or_after
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, new_log, read_values

DIRECTORY = "/data/t-0"
SMALL_SEGMENTS = replace(CONFIG, segment_bytes=300)


def reopen(files: FileSystem, **checkpoint: int) -> Log:
    return open_log(files, DIRECTORY, SMALL_SEGMENTS, Checkpoint(**checkpoint), now_ms=0)


def filled(files: FileSystem, count: int = 20) -> list[str]:
    log = new_log(files, SMALL_SEGMENTS)
    values = [f"value {number}" for number in range(count)]
    for value in values:
        append(log, value, producer_id=1, producer_epoch=0, base_sequence=int(value.split()[1]))
    return values


def overwrite(files: FileSystem, path: str, at: int, data: bytes) -> None:
    content = bytearray(files.read(path))
    content[at : at + len(data)] = data
    files.replace(path, bytes(content))


def segment_paths(files: FileSystem) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in files.list(DIRECTORY) if name.endswith(".log")]


@pytest.mark.parametrize("checkpoint", [{}, {"recovery_point": 7}, {"recovery_point": 20}, {"clean": True}])
def test_everything_is_there_after_reopening(checkpoint: dict[str, int]) -> None:
    files = MemoryFiles()
    values = filled(files)
    log = reopen(files, **checkpoint)
    assert read_values(log) == values
    assert append(log, "next").base_offset == 20
    assert read_values(log, 18) == [*values[18:], "next"]


def test_indexes_that_are_missing_are_rebuilt() -> None:
    files = MemoryFiles()
    values = filled(files)
    for name in files.list(DIRECTORY):
        if name.endswith("index"):
            files.remove(f"{DIRECTORY}/{name}")
    log = reopen(files, clean=True)
    assert [read_values(log, offset) for offset in range(20)] == [values[offset:] for offset in range(20)]
    assert run_through(offset_at_or_after(log, 0)) is not None


@pytest.mark.parametrize("offset", [-(2**55), 2], ids=["below zero", "of an older segment"])
def test_an_offset_that_makes_no_sense_is_not_where_the_log_goes_on(
    offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch's offset is under no checksum, and nothing else tells the end where the log dir's checkpoint is lost."""
    files = MemoryFiles()
    log = new_log(files, SMALL_SEGMENTS)
    for number in range(9):
        append(log, f"value {number}")
        last_at = log.active.file.size
    last = append(log, "the last")
    log.close()
    overwrite(files, log.active.path, last_at, offset.to_bytes(8, "big", signed=True))
    again = reopen(files, clean=True, log_start_offset=2)
    assert "stands where 9 should" in caplog.text
    assert append(again, "next").base_offset >= last.base_offset
    assert read_values(again, again.log_end_offset - 1) == ["next"]


def test_another_segments_batches_are_damage_where_they_do_not_belong(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    values = filled(files)
    *_, second, last = segment_paths(files)
    files.replace(second, files.read(last))
    log = reopen(files, clean=True, recovery_point=20)
    behind = log.segments[-1].base_offset
    before = next(segment.base_offset for segment in log.segments if segment.path == second)
    assert f"offsets {before} to {behind - 1} are corrupt" in caplog.text
    assert read_values(log, behind) == values[behind:]
    assert read_values(log, limit=before) == values[:before]
    with pytest.raises(CorruptLog):
        log.read(before, 1, log.log_end_offset)


def test_a_last_segment_of_which_nothing_is_left_is_not_written_over() -> None:
    """Where the log dir's checkpoint is lost, nothing tells how many offsets it had; some, since it has bytes."""
    files = MemoryFiles()
    filled(files)
    last = segment_paths(files)[-1]
    damaged = bytes(len(files.read(last)))
    files.replace(last, damaged)
    log = reopen(files, clean=True)
    end = log.log_end_offset
    for number in range(5):  # so many that another segment begins
        assert append(log, f"next {number}").base_offset == end + number
    assert read_values(log, end) == [f"next {number}" for number in range(5)]
    assert files.read(last)[: len(damaged)] == damaged
    paths = segment_paths(files)
    assert len(paths) == len(set(paths)) == len(log.segments)


def test_a_batch_behind_one_whose_offset_has_changed_is_read() -> None:
    files = MemoryFiles()
    log = new_log(files)
    positions = [log.active.file.size for value in "abc" if append(log, value)]
    log.close()
    overwrite(files, log.active.path, positions[0], (2**50).to_bytes(8, "big"))
    again = open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=3, clean=True), now_ms=0)
    assert read_values(again, 2) == ["c"]
    with pytest.raises(CorruptLog):
        again.read(1, 1, 3)


@pytest.mark.parametrize("torn_bytes", [1, 30, 60, 75])
def test_a_torn_tail_is_cut_and_said_so(torn_bytes: int, caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    values = filled(files)
    last = segment_paths(files)[-1]
    content = files.read(last)
    files.replace(last, content + content[:torn_bytes])
    with caplog.at_level(logging.WARNING):
        log = reopen(files, recovery_point=5)
    assert read_values(log) == values
    assert "truncated" in caplog.text
    assert append(log, "next").base_offset == 20


def test_bad_batch_past_the_checkpoint_ends_the_log_after_a_power_loss() -> None:
    """After a process crash it does not: see test_corrupt_unsynced.py."""
    files = MemoryFiles()
    values = filled(files)
    middle = segment_paths(files)[2]
    overwrite(files, middle, 70, b"\xff")
    log = reopen(files, recovery_point=int(middle.split("/")[-1].split(".")[0]), same_boot_as_last_run=False)
    kept = read_values(log)
    assert kept == values[: len(kept)]
    assert log.log_end_offset == len(kept) < 20
    assert append(log, "next").base_offset == len(kept)


def test_a_bad_batch_below_the_checkpoint_is_a_hole_that_can_be_read_around(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    values = filled(files)
    victim = segment_paths(files)[2]
    base = int(victim.split("/")[-1].split(".")[0])
    overwrite(files, victim, 70, b"\xff")
    log = reopen(files, recovery_point=20)
    assert log.log_end_offset == 20
    assert read_values(log, 0, limit=base) == values[:base]
    with pytest.raises(CorruptLog):
        log.read(base, 1_000, 20)
    assert read_values(log, base + 1) == values[base + 1 :]
    assert "checksum" in caplog.text


def test_a_header_destroyed_below_the_checkpoint_costs_at_most_an_index_interval() -> None:
    files = MemoryFiles()
    log = new_log(files, replace(CONFIG, segment_bytes=100_000))
    values = [f"value {number}" for number in range(100)]
    for value in values:
        append(log, value)
    log.active.persist_indexes()
    position = log.active.translate_offset(50)
    overwrite(files, log.active.path, position, b"\x00" * 61)
    reopened = open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=100), now_ms=0)
    assert reopened.log_end_offset == 100
    assert read_values(reopened, 0, limit=50) == values[:50]
    with pytest.raises(CorruptLog):
        reopened.read(50, 1_000, 100)
    assert read_values(reopened, 56) == values[56:]


def test_a_file_shortened_below_the_checkpoint_loses_no_offset_numbers(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    values = filled(files)
    last = segment_paths(files)[-1]
    base = int(last.split("/")[-1].split(".")[0])
    files.replace(last, b"")
    log = reopen(files, recovery_point=20)
    assert log.log_end_offset == 20, "offsets that were acknowledged are never given to other records"
    with pytest.raises(CorruptLog):
        log.read(base, 1_000, 20)
    assert read_values(log, 0, limit=base) == values[:base]
    assert append(log, "next").base_offset == 20
    assert read_values(log, 20) == ["next"]
    assert "had been reached" in caplog.text


def test_producers_are_remembered_over_a_restart_rule_12() -> None:
    files = MemoryFiles()
    filled(files)
    for snapshot in [name for name in files.list(DIRECTORY) if name.endswith(".snapshot")][-2:]:
        files.remove(f"{DIRECTORY}/{snapshot}")
    log = reopen(files)
    again = append(log, "value 19", producer_id=1, producer_epoch=0, base_sequence=19)
    assert again.duplicate
    assert again.base_offset == 19
    assert append(log, "value 20", producer_id=1, producer_epoch=0, base_sequence=20).base_offset == 20


def test_segments_below_the_log_start_are_removed() -> None:
    files = MemoryFiles()
    filled(files)
    before = len(segment_paths(files))
    log = reopen(files, log_start_offset=10)
    assert log.log_start_offset == 10
    assert len(segment_paths(files)) < before
    assert read_values(log, 10)[0] == "value 10"


def test_an_empty_folder_never_gives_out_old_offsets_again() -> None:
    files = MemoryFiles()
    files.make_dir(DIRECTORY)
    log = reopen(files, recovery_point=42)
    assert append(log, "x").base_offset == 42


def test_recovered_log_that_is_closed_keeps_its_truncation() -> None:
    """A torn write that recovery removed must not come back after a clean stop and a power failure."""
    with SimFiles() as files:
        files.make_dir("/data")
        log = new_log(files)
        for directory in ("/", "/data", DIRECTORY):
            files.sync_dir(directory)
        log.active.file.append(b"torn write, which the disk has")
        log.active.file.sync()
        again = reopen(files)
        again.close()
        files.lose_power()
        once_more = reopen(files, recovery_point=again.recovery_point, clean=True)
        assert (once_more.log_end_offset, [one.holes for one in once_more.segments]) == (0, [[]])
