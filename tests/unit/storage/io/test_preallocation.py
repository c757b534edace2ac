"""Room ahead of a log's end: made for those who gain by it, seen by nobody, and gone when the log is closed or full."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from headrace.storage.io.file_system import File, room_of
from headrace.storage.io.preallocation import (
    PREALLOCATED_BYTES,
    PREALLOCATION_UNIT,
    ROUND_BYTES_MAX,
    ROUNDS_MIN,
    Preallocator,
)
from headrace.storage.io.stepwise import run_through
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.timestamp_lookup import offset_at_or_after
from headrace.testing import SimFiles
from tests.unit.storage.fault_kit import Promises, lives_on, run_until
from tests.unit.storage.io.small_preallocation import small_rooms
from tests.unit.storage.log_kit import CONFIG, append, new_log, read_values

DIRECTORY = "/data/t-0"


@pytest.fixture
def files() -> Iterator[SimFiles]:
    with SimFiles() as files:
        files.make_dir(DIRECTORY)
        for folder in ("/", "/data"):
            files.sync_dir(folder)
        yield files


@pytest.fixture
def file(files: SimFiles) -> File:
    return files.open("/data/log", create=True)


def grow(ahead: Preallocator, file: File, *sizes: int, base_offset: int = 0, size_max: int = 1 << 30) -> None:
    """A round for each."""
    for size in sizes:
        file.append(bytes(size))
        ahead.round_begins(base_offset, file, size_max)


def sync(log: Log) -> None:
    work, end = log.take_unflushed()
    for item in work:
        item.sync()
    log.synced(end)


def write(log: Log, count: int) -> list[str]:
    """One batch a sync."""
    values = [f"value {log.log_end_offset + number}" for number in range(count)]
    for number, value in enumerate(values):
        append(log, value, timestamp=1_000 + number)
        sync(log)
    return values


# When there is room


def test_a_file_that_is_synced_after_every_few_bytes_gets_room(file: File) -> None:
    ahead = Preallocator()
    grow(ahead, file, *[100] * (ROUNDS_MIN - 1))
    assert file.preallocated_end == 0, "a message now and then is no reason"
    grow(ahead, file, 100)
    assert PREALLOCATED_BYTES - PREALLOCATION_UNIT < file.preallocated_end - file.size <= PREALLOCATED_BYTES
    assert file.preallocated_end % PREALLOCATION_UNIT == 0


def test_large_rounds_get_none(file: File) -> None:
    grow(Preallocator(), file, *[ROUND_BYTES_MAX + 1] * 3 * ROUNDS_MIN)
    assert file.preallocated_end == 0


def test_small_rounds_are_counted_in_a_row(file: File) -> None:
    ahead = Preallocator()
    grow(ahead, file, *([*[100] * (ROUNDS_MIN - 1), ROUND_BYTES_MAX + 1] * 3))
    assert file.preallocated_end == 0


def test_the_next_segment_is_counted_from_its_beginning(files: SimFiles, file: File) -> None:
    ahead, following = Preallocator(), files.open("/data/following", create=True)
    grow(ahead, file, *[100] * (ROUNDS_MIN - 1))
    grow(ahead, following, *[100] * (ROUNDS_MIN - 1), base_offset=70)
    assert (file.preallocated_end, following.preallocated_end) == (0, 0)
    grow(ahead, following, 100, base_offset=70)
    assert following.preallocated_end > following.size


def test_room_is_made_anew_before_it_is_used_up(file: File) -> None:
    ahead = Preallocator()
    grow(ahead, file, *[1_000] * ROUNDS_MIN)
    made = 0
    for _ in range(10 * PREALLOCATED_BYTES // 1_000):
        before = file.preallocated_end
        assert file.size + 1_000 <= before, "no append makes the file longer"
        grow(ahead, file, 1_000)
        made += file.preallocated_end > before
    assert made <= 12, "once for about as many bytes as there is room"


def test_there_is_no_room_behind_the_end_of_a_segment(file: File) -> None:
    grow(Preallocator(), file, *[100] * ROUNDS_MIN, size_max=20_000)
    assert file.preallocated_end == 20_000 - 20_000 % PREALLOCATION_UNIT


def test_a_disk_that_has_none_left_is_no_reason_to_fail(files: SimFiles, file: File) -> None:
    files.capacity_bytes = 10_000
    grow(Preallocator(), file, *[100] * 2 * ROUNDS_MIN)
    assert (file.size, file.preallocated_end) == (2 * ROUNDS_MIN * 100, 0)


def test_no_room_is_made_while_the_disk_cannot_spare_it(file: File) -> None:
    ahead, asked = Preallocator(), []
    ahead.may_take = lambda size: asked.append(size) or False  # type: ignore[func-returns-value]
    grow(ahead, file, *[100] * 2 * ROUNDS_MIN)
    assert file.preallocated_end == 0
    assert PREALLOCATED_BYTES - PREALLOCATION_UNIT < min(asked) <= max(asked) <= PREALLOCATED_BYTES
    ahead.may_take = lambda size: True
    grow(ahead, file, 100)
    assert file.preallocated_end > file.size


def test_log_that_gave_back_its_room_goes_on_and_makes_room_again(files: SimFiles) -> None:
    log = new_log(files)
    values = write(log, 20)
    log.trim_preallocation()
    assert len(files.read(log.active.path)) == log.active.size
    log.room.may_take = lambda size: False
    values += write(log, 20)
    assert len(files.read(log.active.path)) == log.active.size
    log.room.may_take = lambda size: True
    values += write(log, 1)
    assert log.active.file.preallocated_end > log.active.size
    assert read_values(log) == values
    files.lose_power()
    assert read_values(open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=41), now_ms=0)) == values


# What a log makes of it


def test_nobody_reads_the_room(files: SimFiles) -> None:
    log = new_log(files)
    values = write(log, 50)
    active = log.active
    assert active.file.preallocated_end > active.size
    assert read_values(log) == values
    assert [header.base_offset for _, header in active.headers()] == list(range(50))
    assert [active.translate_offset(offset) for offset in (0, 49, 50)][-1] == active.size == log.size_bytes
    found = run_through(offset_at_or_after(log, 1_049))
    assert found is not None
    assert found.offset == 49
    assert run_through(offset_at_or_after(log, 1_050)) is None


def test_a_segment_that_is_full_gives_its_room_back_for_good(files: SimFiles) -> None:
    log = new_log(files, replace(CONFIG, segment_bytes=3 * PREALLOCATION_UNIT))
    sealed = log.active
    while log.active is sealed:
        assert files.read(sealed.path)[sealed.size :] == room_of(max(0, sealed.file.preallocated_end - sealed.size))
        write(log, 1)
    files.lose_power()
    assert len(files.read(sealed.path)) == sealed.size


def test_a_log_that_is_closed_gives_its_room_back_for_good(files: SimFiles) -> None:
    log = new_log(files)
    values = write(log, 20)
    log.close()
    files.lose_power()
    assert len(files.read(log.active.path)) == log.active.size
    again = open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=20, clean=True), now_ms=0)
    assert read_values(again) == values


def test_a_log_that_has_room_and_nothing_new_gives_it_back_too(files: SimFiles) -> None:
    log = new_log(files)
    values = write(log, 20)
    log.close()
    clean = Checkpoint(recovery_point=20, clean=True)
    again = open_log(files, DIRECTORY, CONFIG, clean, now_ms=0)
    for _ in range(ROUNDS_MIN + 1):
        sync(again)
    assert again.active.file.preallocated_end > again.active.size
    again.close()
    files.lose_power()
    assert len(files.read(log.active.path)) == log.active.size
    assert read_values(open_log(files, DIRECTORY, CONFIG, clean, now_ms=0)) == values


@pytest.mark.parametrize("recovery_point", [0, 7, 20])
def test_room_that_a_crash_leaves_is_cut_without_a_word(
    files: SimFiles, recovery_point: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log(files)
    values = write(log, 20)
    files.lose_power()
    with caplog.at_level(logging.INFO):
        again = open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=recovery_point), now_ms=0)
    assert caplog.text == ""
    assert len(files.read(again.active.path)) == again.active.size == log.active.size
    assert read_values(again) == values
    assert [*values, *write(again, 30)] == read_values(again)


def test_half_a_write_in_the_room_is_cut_and_said_so(files: SimFiles, caplog: pytest.LogCaptureFixture) -> None:
    log = new_log(files)
    values = write(log, 20)
    path, start = log.active.path, log.active.size
    append(log, "x" * 500)
    end = log.active.size
    files.lose_power(torn=Random(2))
    assert start < len(files.read(path).rstrip(room_of(1))) < end, "some of it has arrived"
    with caplog.at_level(logging.WARNING):
        again = open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=20), now_ms=0)
    assert "truncated" in caplog.text
    assert read_values(again) == values


def test_a_failed_append_leaves_a_log_without_room_that_goes_on(files: SimFiles) -> None:
    log = new_log(files)
    values = write(log, 20)
    log.active.file.truncate(log.active.size)  # as an append does that could not write everything
    assert log.active.file.preallocated_end == 0
    values += write(log, 20)
    assert log.active.file.preallocated_end > log.active.size
    assert read_values(log) == values


def test_a_log_that_was_abandoned_with_a_round_to_come_has_nothing_to_sync(files: SimFiles) -> None:
    """Its topic was deleted in the same turn of the loop; the other partitions of that turn are synced as ever."""
    log = new_log(files)
    write(log, 20)
    append(log, "not synced yet")
    log.abandon()
    assert log.take_unflushed() == ([], 21)


# Crashes


@pytest.mark.parametrize("crash", ["killed", "power lost", "power lost in between"])
def test_d2_d4_with_room_a_crash_before_any_operation_loses_nothing_that_was_acknowledged(crash: str) -> None:
    operations, rooms, stopped = 0, 0, True
    while stopped:
        with small_rooms(224, 120), SimFiles() as files:
            promises = Promises()
            stopped = run_until(files, promises, operations)
            rooms = sum(operation == "preallocate_tail" for operation, _ in files.operations)
            if crash != "killed":
                files.lose_power(torn=Random(operations) if crash == "power lost in between" else None)
            lives_on(files, promises, boot=10)
        operations += 1
    assert operations > 150, "the whole life was tried"
    assert rooms > 10
