"""What storage relies on, asked of each file layer: the real disk, memory, and the simulated disk."""

import os
from collections.abc import Iterator

import pytest

from headrace.model.errors import StorageError
from headrace.storage.io.file_system import FileSystem, OsFileSystem
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.testing import SimFiles


@pytest.fixture(params=["disk", "memory", "simulated"])
def files(request) -> Iterator[FileSystem]:
    if request.param == "simulated":
        with SimFiles() as simulated:
            yield simulated
    else:
        yield OsFileSystem() if request.param == "disk" else MemoryFiles()


@pytest.fixture
def folder(files, tmp_path) -> str:
    path = f"{tmp_path}/data"
    files.make_dir(path)
    return path


def test_a_file_grows_at_its_end_and_knows_its_size(files, folder):
    file = files.open(f"{folder}/log", create=True)
    assert file.size == 0
    file.append(b"one ")
    file.append(bytearray(b"two "))
    file.append(memoryview(b"three"))
    file.sync()
    assert (file.size, file.read(0, 100), file.read(4, 3)) == (13, b"one two three", b"two")
    file.close()


def test_reading_past_the_end_gives_what_there_is(files, folder):
    file = files.open(f"{folder}/log", create=True)
    file.append(b"12345")
    assert (file.read(3, 10), file.read(5, 10), file.read(9, 10)) == (b"45", b"", b"")
    file.close()


def test_closing_and_opening_again_keeps_the_bytes(files, folder):
    file = files.open(f"{folder}/log", create=True)
    file.append(b"kept")
    file.close()
    again = files.open(f"{folder}/log")
    assert (again.size, again.read(0, 9)) == (4, b"kept")
    again.append(b" on")
    assert files.read(f"{folder}/log") == b"kept on"
    again.close()


def test_creating_what_exists_keeps_it(files, folder):
    files.replace(f"{folder}/log", b"there already")
    file = files.open(f"{folder}/log", create=True)
    assert file.size == 13
    file.close()


def test_truncating_forgets_the_tail_and_appending_goes_on_there(files, folder):
    file = files.open(f"{folder}/log", create=True)
    file.append(b"0123456789")
    file.truncate(4)
    file.append(b"ab")
    assert (file.size, files.read(f"{folder}/log")) == (6, b"0123ab")
    file.close()


def test_the_descriptor_shows_the_same_bytes(files, folder):
    file = files.open(f"{folder}/log", create=True)
    file.append(b"for sendfile")
    assert os.pread(file.fileno(), 99, 4) == b"sendfile"
    file.close()


def test_what_is_missing_is_a_file_not_found_error(files, folder):
    for call in (
        lambda: files.open(f"{folder}/nothing"),
        lambda: files.read(f"{folder}/nothing"),
        lambda: files.remove(f"{folder}/nothing"),
        lambda: files.rename(f"{folder}/nothing", f"{folder}/something"),
    ):
        with pytest.raises(FileNotFoundError):
            call()
    assert not files.exists(f"{folder}/nothing")


@pytest.mark.parametrize("sync", [True, False])
def test_replacing_is_the_whole_content_and_leaves_nothing_else(files, folder, sync):
    files.replace(f"{folder}/checkpoint", b"a long first content", sync=sync)
    files.replace(f"{folder}/checkpoint", b"short", sync=sync)
    assert files.read(f"{folder}/checkpoint") == b"short"
    assert files.list(folder) == ["checkpoint"]


def test_a_file_may_be_renamed_onto_another(files, folder):
    files.replace(f"{folder}/new", b"new")
    files.replace(f"{folder}/old", b"old")
    files.rename(f"{folder}/new", f"{folder}/old")
    assert (files.list(folder), files.read(f"{folder}/old")) == (["old"], b"new")


def test_a_file_that_is_open_can_be_read_after_it_was_renamed(files, folder):
    file = files.open(f"{folder}/log", create=True)
    file.append(b"bytes")
    files.rename(f"{folder}/log", f"{folder}/log.deleted")
    assert file.read(0, 9) == b"bytes"
    file.close()


def test_a_folder_is_renamed_with_everything_in_it(files, folder):
    files.make_dir(f"{folder}/topic-0")
    files.replace(f"{folder}/topic-0/log", b"bytes")
    files.rename(f"{folder}/topic-0", f"{folder}/topic-0.gone")
    assert files.list(folder) == ["topic-0.gone"]
    assert files.read(f"{folder}/topic-0.gone/log") == b"bytes"
    assert not files.exists(f"{folder}/topic-0/log")


def test_name_of_more_than_255_bytes_raises_storage_error(files, folder):
    if isinstance(files, MemoryFiles):
        return  # no limit
    files.make_dir(f"{folder}/topic-0")
    files.rename(f"{folder}/topic-0", f"{folder}/{'l' * 255}")
    for attempt in (
        lambda path: files.rename(f"{folder}/{'l' * 255}", path),
        lambda path: files.make_dir(path),
        lambda path: files.replace(path, b""),
        lambda path: files.open(path, create=True),
    ):
        with pytest.raises(StorageError):
            attempt(f"{folder}/{'l' * 256}")
    assert files.list(folder) == ["l" * 255]


def test_link_whose_target_is_missing_exists(tmp_path):
    os.symlink(f"{tmp_path}/missing", f"{tmp_path}/link")
    assert OsFileSystem().exists(f"{tmp_path}/link")


def test_names_are_listed_in_order_files_and_folders_alike(files, folder):
    files.make_dir(f"{folder}/b")
    for name in ("c", "a"):
        files.replace(f"{folder}/{name}", b"")
    assert files.list(folder) == ["a", "b", "c"]
    assert files.exists(f"{folder}/a")
    assert files.exists(f"{folder}/b")


def test_making_a_folder_twice_is_no_error_and_makes_those_above_it(files, folder):
    for _ in range(2):
        files.make_dir(f"{folder}/one/two")
    files.replace(f"{folder}/one/two/file", b"x")
    assert files.list(f"{folder}/one") == ["two"]


def test_a_tree_is_removed_with_everything_below_it(files, folder):
    files.make_dir(f"{folder}/topic-0/below")
    files.replace(f"{folder}/topic-0/log", b"x")
    files.replace(f"{folder}/topic-0/below/log", b"x")
    files.remove_tree(f"{folder}/topic-0")
    assert files.list(folder) == []


def test_a_removed_file_is_gone_and_its_name_is_free(files, folder):
    files.replace(f"{folder}/log", b"old")
    files.remove(f"{folder}/log")
    assert not files.exists(f"{folder}/log")
    file = files.open(f"{folder}/log", create=True)
    assert file.size == 0
    file.close()


def test_folders_are_synced_and_asked_for_room(files, folder):
    files.sync_dir(folder)
    assert files.free_bytes(folder) > 0


# Room


def test_room_is_behind_the_content_and_no_part_of_it(files, folder):
    file = files.open(f"{folder}/log", create=True)
    file.append(b"content")
    file.preallocate_tail(100)
    assert (file.size, file.read(0, 1000), file.read(7, 10), file.read(50, 10)) == (7, b"content", b"", b"")
    file.append(b" and more")
    assert (file.size, file.read(0, 1000)) == (16, b"content and more")
    file.sync()
    file.close()


def test_room_that_is_given_back_leaves_the_content(files, folder):
    file = files.open(f"{folder}/log", create=True)
    file.append(b"content")
    file.preallocate_tail(100)
    assert file.trim_preallocation() == (not isinstance(files, MemoryFiles)), "memory makes none"
    assert not file.trim_preallocation()
    assert files.read(f"{folder}/log") == b"content"
    file.append(b"!")
    assert files.read(f"{folder}/log") == b"content!"
    file.close()


def test_appends_may_outgrow_their_room(files, folder):
    file = files.open(f"{folder}/log", create=True)
    file.preallocate_tail(10)
    file.append(b"0123456789abc")
    assert not file.trim_preallocation()
    assert (file.size, files.read(f"{folder}/log")) == (13, b"0123456789abc")
    file.close()


def test_more_room_is_added_to_what_there_is(files, folder):
    file = files.open(f"{folder}/log", create=True)
    for size in (10, 5, 20):
        file.append(b"x")
        file.preallocate_tail(size)
    assert file.preallocated_end == (0 if isinstance(files, MemoryFiles) else 20)
    assert file.read(0, 100) == b"xxx"
    file.close()


def test_a_file_that_is_cut_has_no_room(files, folder):
    file = files.open(f"{folder}/log", create=True)
    file.append(b"content")
    file.preallocate_tail(100)
    file.truncate(3)
    assert (file.size, file.preallocated_end, files.read(f"{folder}/log")) == (3, 0, b"con")
    file.close()


@pytest.mark.parametrize("files", ["disk", "simulated"], indirect=True)  # memory makes none
def test_what_was_left_of_room_is_content_to_who_opens_it_next(files, folder):
    file = files.open(f"{folder}/log", create=True)
    file.append(b"content")
    file.preallocate_tail(10)
    file.close()
    again = files.open(f"{folder}/log")
    assert (again.size, again.preallocated_end, again.read(0, 100)) == (10, 0, b"content\1\1\1")
    again.close()
