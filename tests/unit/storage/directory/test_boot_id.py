"""Whether what was not synced is still there: a process that was killed leaves it with the machine."""

from collections.abc import Iterator

import pytest

from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.io.file_system import OsFileSystem
from headrace.testing import SimFiles


@pytest.fixture
def files() -> Iterator[SimFiles]:
    with SimFiles() as disk:
        disk.make_dir("/data")
        disk.sync_dir("/")
        yield disk


def test_a_folder_that_nobody_has_used_keeps_nothing(files: SimFiles) -> None:
    assert not LogDirectory(files, "/data").same_boot_as_last_run


def recovered(files: SimFiles) -> None:
    """A start that has opened every log."""
    log_dir = LogDirectory(files, "/data")
    log_dir.begin_writing()
    log_dir.end_recovery()


def test_a_process_that_is_killed_loses_nothing(files: SimFiles) -> None:
    recovered(files)
    files.boots += 1
    again = LogDirectory(files, "/data")
    assert not again.was_clean
    assert again.same_boot_as_last_run


def test_a_power_cut_loses_what_was_not_synced(files: SimFiles) -> None:
    recovered(files)
    files.lose_power()
    assert not LogDirectory(files, "/data").same_boot_as_last_run


def test_a_start_after_a_power_cut_that_told_nobody_is_not_the_last_to_tell(files: SimFiles) -> None:
    """It was killed before others knew what it had lost: the next start must not take that for there."""
    recovered(files)
    files.lose_power()
    LogDirectory(files, "/data")
    files.boots += 1
    second = LogDirectory(files, "/data")
    assert not second.same_boot_as_last_run
    second.begin_writing()
    second.end_recovery()
    files.boots += 1
    assert LogDirectory(files, "/data").same_boot_as_last_run


def test_where_the_machine_does_not_say_nothing_is_kept(files: SimFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFiles, "boot_id", lambda self: "")
    recovered(files)
    files.boots += 1
    assert not LogDirectory(files, "/data").same_boot_as_last_run


def test_linux_names_its_boots() -> None:
    assert OsFileSystem().boot_id() == OsFileSystem().boot_id() != ""


def test_kill_before_recovery_finished_is_still_a_host_restart(files: SimFiles) -> None:
    recovered(files)
    files.lose_power()
    LogDirectory(files, "/data").begin_writing()
    files.boots += 1
    again = LogDirectory(files, "/data")
    assert not again.same_boot_as_last_run, "some logs are as the power loss left them"
    again.begin_writing()
    again.end_recovery()
    files.boots += 1
    assert LogDirectory(files, "/data").same_boot_as_last_run


def test_kill_during_a_start_after_a_clean_stop_loses_nothing(files: SimFiles) -> None:
    first = LogDirectory(files, "/data")
    first.begin_writing()
    first.mark_clean()
    files.lose_power()  # a host restart
    LogDirectory(files, "/data").begin_writing()
    files.boots += 1
    again = LogDirectory(files, "/data")
    assert not again.was_clean
    assert again.same_boot_as_last_run
