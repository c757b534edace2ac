"""Files of segments that have left their log are closed: until then, the disk does not get their space back."""

import gc
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.storage.cleaner.cleaner import Cleaner
from headrace.storage.cleaner.log_to_clean import cleanable
from headrace.storage.io.file_system import OsFileSystem
from headrace.storage.io.stepwise import run_through
from headrace.storage.log import Log
from headrace.storage.log_read import read
from headrace.storage.log_truncation import restart_log_at, truncate_log
from tests.unit.storage.io.small_preallocation import small_rooms
from tests.unit.storage.log_kit import CONFIG, append
from tests.unit.storage.test_log_transactions import ABORT, end, write

COMPACTED = replace(CONFIG, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)


def removed_and_open() -> list[str]:
    gc.collect()
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.islink(link) and "(deleted)" in os.readlink(link)]


def log_in(directory: Path) -> Log:
    """Small syncs in a row, so that it has preallocated bytes; sealed segments, some of them with aborted records."""
    files = OsFileSystem()
    log = Log.create(files, str(directory / "t-0"), CONFIG, now_ms=0)
    for number in range(5):
        for _ in range(10):
            append(log, "value")
            sync(log)
        write(log, 7, "aborted", sequence=number)
        end(log, 7, ABORT)
        if number < 4:
            log.roll(0)
    return log


def sync(log: Log) -> None:
    work, offset = log.take_unflushed()
    for item in work:
        item.sync()
    log.synced(offset)


def unlink(log: Log, gone: list[str]) -> None:
    for stem in gone:
        for name in os.listdir(log.directory):
            if name.startswith(stem) and not name.endswith(".snapshot"):
                os.unlink(f"{log.directory}/{name}")


def retention(log: Log) -> None:
    gone = log.advance_log_start(log.active.base_offset)
    unlink(log, [f"{segment.base_offset:020d}" for segment in gone])


def retention_of_everything(log: Log) -> None:
    log.roll(0)
    retention(log)


def compaction(log: Log) -> None:
    dirty = cleanable(
        log.segments,
        cleaned_to=0,
        log_start_offset=0,
        stable_offset=log.recovery_point,
        config=COMPACTED,
        now_ms=10**9,
    )
    cleaner = Cleaner(log, dirty, now_ms=10**9)
    run_through(cleaner.run())
    for one in cleaner.cleaned.replaced:
        one.remove(log.files)


def truncation(log: Log) -> None:
    truncate_log(log, log.segments[1].base_offset, 0)


def beginning_anew(log: Log) -> None:
    restart_log_at(log, log.log_end_offset, 0)


WAYS: list[Callable[[Log], None]] = [retention, retention_of_everything, compaction, truncation, beginning_anew]


@pytest.mark.parametrize("leave", WAYS)
def test_segments_that_left_the_log_are_closed(leave: Callable[[Log], None], tmp_path: Path) -> None:
    with small_rooms():
        log = log_in(tmp_path)
        before = removed_and_open()
        leave(log)
        assert removed_and_open() == before
        log.close()


@pytest.mark.parametrize("leave", WAYS)
def test_response_being_sent_keeps_its_file_open(leave: Callable[[Log], None], tmp_path: Path) -> None:
    with small_rooms():
        log = log_in(tmp_path)
        records = read(log, 0, 1, log.log_end_offset) if leave is not truncation else read(log, 40, 1, 60)
        assert records is not None
        sent = records.read()
        leave(log)
        assert records.read() == sent
        del records
        log.close()


@pytest.mark.parametrize("leave", WAYS)
def test_sync_under_way_finds_its_files_open(leave: Callable[[Log], None], tmp_path: Path) -> None:
    """A sealed segment that gives its preallocated bytes back is synced again, although its records are synced."""
    with small_rooms():
        log = log_in(tmp_path)
        sync(log)
        for _ in range(10):
            append(log, "value")
            sync(log)
        log.roll(0)
        append(log, "value")
        work, offset = log.take_unflushed()
        leave(log)
        for item in work:
            item.sync()
        log.synced(offset)
        log.close()
