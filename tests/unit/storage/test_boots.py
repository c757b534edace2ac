"""Whether what was not synced is still there: a process that was killed leaves it with the machine."""

from collections.abc import Iterator

import pytest

from headrace.storage.files import DiskFiles
from headrace.storage.log_dir import LogDir
from headrace.testing import SimFiles


@pytest.fixture
def files() -> Iterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


def test_a_folder_that_nobody_has_used_keeps_nothing(files: SimFiles) -> None:
    assert not LogDir(files, "/data").keeps_unsynced


def test_a_process_that_is_killed_loses_nothing(files: SimFiles) -> None:
    LogDir(files, "/data").note_boot()
    files.boots += 1
    again = LogDir(files, "/data")
    assert not again.was_clean
    assert again.keeps_unsynced


def test_a_power_cut_loses_what_was_not_synced(files: SimFiles) -> None:
    LogDir(files, "/data").note_boot()
    files.lose_power()
    assert not LogDir(files, "/data").keeps_unsynced


def test_a_start_after_a_power_cut_that_told_nobody_is_not_the_last_to_tell(files: SimFiles) -> None:
    """It was killed before others knew what it had lost: the next start must not take that for there."""
    LogDir(files, "/data").note_boot()
    files.lose_power()
    LogDir(files, "/data")
    files.boots += 1
    second = LogDir(files, "/data")
    assert not second.keeps_unsynced
    second.note_boot()
    files.boots += 1
    assert LogDir(files, "/data").keeps_unsynced


def test_where_the_machine_does_not_say_nothing_is_kept(files: SimFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFiles, "boot_id", lambda self: "")
    LogDir(files, "/data").note_boot()
    files.boots += 1
    assert not LogDir(files, "/data").keeps_unsynced


def test_linux_names_its_boots() -> None:
    assert DiskFiles().boot_id() == DiskFiles().boot_id() != ""
