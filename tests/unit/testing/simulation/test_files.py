"""What SimFiles promises to the tests that lean on it: a model of a disk that is itself wrong proves nothing."""

import errno
import os
from random import Random

import pytest

from headrace.model.errors import DiskFull, StorageError
from headrace.storage.io.file_system import FileSystem
from headrace.testing import PowerLost, SimFiles


@pytest.fixture
def files():
    with SimFiles() as disk:
        disk.make_dir("/data")
        disk.sync_dir("/")
        yield disk


def durable_file(files: SimFiles, path: str, content: bytes = b""):
    file = files.open(path, create=True)
    file.append(content)
    file.sync()
    files.sync_dir("/data")
    return file


def test_it_is_a_files_port(files):
    port: FileSystem = files
    assert port.free_bytes("/data") > 0


def test_synced_bytes_survive_a_power_cut_and_unsynced_ones_do_not(files):
    file = durable_file(files, "/data/log", b"synced")
    file.append(b" and not")
    files.lose_power()
    assert files.read("/data/log") == b"synced"


def test_a_file_whose_name_was_never_synced_is_gone_though_its_bytes_were(files):
    file = files.open("/data/log", create=True)
    file.append(b"bytes")
    file.sync()
    files.lose_power()
    assert not files.exists("/data/log")


def test_an_unsynced_truncation_comes_back(files):
    durable_file(files, "/data/log", b"0123456789").truncate(4)
    assert files.read("/data/log") == b"0123"
    files.lose_power()
    assert files.read("/data/log") == b"0123456789"


def test_bytes_appended_after_a_truncation_are_durable_with_the_next_sync(files):
    file = durable_file(files, "/data/log", b"0123456789")
    file.truncate(4)
    file.append(b"ab")
    file.sync()
    files.lose_power()
    assert files.read("/data/log") == b"0123ab"


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_tail_is_a_prefix_of_what_was_on_its_way(files, seed):
    file = durable_file(files, "/data/log", b"synced")
    file.append(b" and on its way")
    files.lose_power(torn=Random(seed))
    content = files.read("/data/log")
    assert b"synced and on its way".startswith(content)
    assert content.startswith(b"synced")


def test_torn_tails_are_of_many_lengths(files):
    lengths = set()
    durable_file(files, "/data/log")
    for seed in range(50):
        file = files.open("/data/log")
        file.truncate(0)
        file.sync()
        file.append(b"0123456789")
        files.lose_power(torn=Random(seed))
        lengths.add(len(files.read("/data/log")))
    assert {0, 10} < lengths


def test_a_rename_is_all_or_nothing_at_a_power_cut(files):
    for seed in range(20):
        if files.exists("/data/new"):
            files.remove("/data/new")
        durable_file(files, "/data/old", b"x")
        files.rename("/data/old", "/data/new")
        files.lose_power(torn=Random(seed))
        assert files.exists("/data/old") != files.exists("/data/new")


def test_replace_leaves_the_old_or_the_new_whenever_the_power_goes(files):
    files.replace("/data/checkpoint", b"old")
    steps_before = len(files.operations)
    files.replace("/data/checkpoint", b"old")
    steps = len(files.operations) - steps_before
    for step in range(1, steps + 1):
        for torn in (None, Random(step)):
            files.replace("/data/checkpoint", b"old")
            files.lose_power_before(step)
            with pytest.raises(PowerLost):
                files.replace("/data/checkpoint", b"new")
            files.lose_power(torn)
            assert files.read("/data/checkpoint") in (b"old", b"new")


def test_a_file_held_open_over_a_power_cut_is_dead(files):
    file = durable_file(files, "/data/log")
    files.lose_power()
    with pytest.raises(PowerLost):
        file.append(b"from beyond")


def test_the_nth_operation_fails_once(files):
    file = durable_file(files, "/data/log")
    files.fail("append", nth=2)
    file.append(b"a")
    with pytest.raises(StorageError):
        file.append(b"b")
    file.append(b"c")
    assert files.read("/data/log") == b"ac"


def test_a_sticking_fault_lasts_until_the_disk_is_healed(files):
    file = durable_file(files, "/data/log", b"x")
    files.fail("read", path="*/log", sticks=True)
    for _ in range(3):
        with pytest.raises(StorageError):
            file.read(0, 1)
    files.heal()
    assert file.read(0, 1) == b"x"


def test_a_fault_spares_other_paths(files):
    files.fail("append", path="*.index", sticks=True)
    durable_file(files, "/data/0.log", b"fine")
    with pytest.raises(StorageError):
        files.open("/data/0.index", create=True).append(b"x")


def test_bytes_of_a_failed_sync_are_lost_though_the_next_sync_succeeds(files):
    file = durable_file(files, "/data/log", b"before ")
    file.append(b"lost")
    files.fail("sync")
    with pytest.raises(StorageError):
        file.sync()
    file.append(b" after")
    file.sync()
    assert file.read(0, 99) == b"before lost after", "the page cache still shows them"
    files.lose_power()
    assert files.read("/data/log") == b"before \0\0\0\0 after"


def test_no_room_leaves_the_file_as_it_was_and_heals_by_deleting(files):
    files.capacity_bytes = 10
    durable_file(files, "/data/old", b"123456")
    file = durable_file(files, "/data/log", b"12")
    with pytest.raises(DiskFull):
        file.append(b"345")
    assert (file.size, files.read("/data/log"), files.free_bytes("/data")) == (2, b"12", 2)
    files.remove("/data/old")
    file.append(b"345")
    assert files.read("/data/log") == b"12345"


def test_no_room_can_be_ordered_for_one_operation(files):
    files.fail("append", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        files.open("/data/log", create=True).append(b"x")


def test_a_flipped_bit_is_there_before_and_after_a_power_cut(files):
    durable_file(files, "/data/log", b"AAAA")
    files.flip_bit("/data/log", byte=2, bit=1)
    assert files.read("/data/log") == b"AACA"
    files.lose_power()
    assert files.read("/data/log") == b"AACA"


def test_a_tree_removed_half_way_leaves_the_rest(files):
    files.make_dir("/data/topic-0")
    for name in "abc":
        files.open(f"/data/topic-0/{name}", create=True)
    files.sync_dir("/data")
    files.sync_dir("/data/topic-0")
    files.lose_power_before(2)
    with pytest.raises(PowerLost):
        files.remove_tree("/data/topic-0")
    assert len(files._disk.find("/data/topic-0").entries) == 2
    files.lose_power()
    assert files.list("/data/topic-0") == ["a", "b", "c"]


def test_listing_and_missing_files_behave_as_on_disk(files):
    durable_file(files, "/data/b")
    durable_file(files, "/data/a")
    assert files.list("/data") == ["a", "b"]
    with pytest.raises(FileNotFoundError):
        files.open("/data/c")
    with pytest.raises(FileNotFoundError):
        files.read("/nowhere/c")


def test_a_descriptor_shows_the_bytes_for_sendfile(files):
    file = durable_file(files, "/data/log", b"bytes")
    assert os.pread(file.fileno(), 99, 0) == b"bytes"
