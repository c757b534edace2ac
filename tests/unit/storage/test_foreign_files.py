"""Files of other programs in the directory of a partition stay, and the log is opened as if they were not there."""

import os
from pathlib import Path

import pytest

from headrace.storage.io.file_system import OsFileSystem
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.segment.file_names import FileName, parse_file_name
from tests.unit.storage.log_kit import CONFIG, append, read_values

FOREIGN = [
    "2024.log",
    "app.log",
    "\u00b2.log",
    "\u0660" * 20 + ".log",
    "foo.log.swap",
    "123.log.swap",
    "99999999999999999999.log",
    "99999999999999999999.log.swap",
    "-0000000000000000001.log",
    "0000000000000000000.log",
    "000000000000000000000.log",
    "notes.tmp",
    "x.deleted",
    "x.cleaned",
    "x.txnindex",
    "\u0661" * 20 + ".snapshot",
]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("is_directory", [False, True], ids=["file", "directory"])
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_file_is_left_alone(name: str, is_directory: bool, clean: bool, tmp_path: Path) -> None:
    files, directory = OsFileSystem(), tmp_path / "data" / "t-0"
    log = new_log_in(files, directory)
    if clean:
        log.close()
    foreign = directory / name
    if is_directory:
        foreign.mkdir()
    else:
        foreign.write_bytes(b"hello")
    checkpoint = Checkpoint(recovery_point=log.log_end_offset, clean=clean)
    again = open_log(files, str(directory), CONFIG, checkpoint, now_ms=0)
    assert read_values(again) == ["a", "b", "c"]
    assert again.log_end_offset == 3
    append(again, "d")
    again.close()
    assert foreign.is_dir() if is_directory else foreign.read_bytes() == b"hello"


def new_log_in(files: OsFileSystem, directory: Path) -> Log:
    log = Log.create(files, str(directory), CONFIG, now_ms=0)
    for value in "abc":
        append(log, value)
        log.roll(0)
    for item in log.unsynced()[0]:
        item.sync()
    log.synced(log.log_end_offset)
    return log


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_name_is_not_parsed(name: str) -> None:
    assert parse_file_name(name) is None


def test_name_of_the_last_offset_is_parsed() -> None:
    assert parse_file_name("09223372036854775807.log") == FileName(2**63 - 1, ".log")
    assert parse_file_name("09223372036854775808.log") is None
    assert parse_file_name("00000000000000000007.index.swap") == FileName(7, ".index.swap")


def test_symbolic_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_bytes(b"x")
    link = tmp_path / "t-0.0123456789abcdef0123456789abcdef-delete"
    link.symlink_to(kept)
    OsFileSystem().remove_tree(str(link))
    assert not os.path.lexists(link)
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "link").symlink_to(kept)
    OsFileSystem().remove_tree(str(tree))
    assert not tree.exists()
    assert (kept / "file").read_bytes() == b"x"
