"""Without file descriptors or memory, appends fail and syncs wait; afterwards no partition is offline."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headrace.broker.replica import flush_backends
from headrace.broker.replica.flush_backends import FlushRequest, ThreadFlushBackend
from headrace.core.image.deltas import PartitionsChanged, TopicCreated
from headrace.model.errors import ResourceShortage, StorageError
from headrace.storage.io.file_system import DirectorySync, FileSync, OsFileSystem
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.testing import SimFiles
from tests.unit.broker.partition_kit import values_of
from tests.unit.broker.replica.test_replica_manager import DATA, Run, topic, values

SHORTAGES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]
by_errno = pytest.mark.parametrize("error", SHORTAGES, ids=errno.errorcode.get)


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


def fails_with(error: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    return fail


@by_errno
def test_open_on_disk_and_in_memory_reports_a_shortage(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, memory = OsFileSystem(), MemoryFiles()
    disk.open(f"{tmp_path}/there", create=True).close()
    memory.replace("/data/bytes", b"x")
    monkeypatch.setattr(os, "open", fails_with(error))
    monkeypatch.setattr(os, "memfd_create", fails_with(error))
    for attempt in (
        lambda: disk.open(f"{tmp_path}/new", create=True),
        lambda: disk.open(f"{tmp_path}/there"),
        lambda: disk.sync_dir(str(tmp_path)),
        lambda: memory.open("/data/new", create=True),
        lambda: memory.open("/data/bytes"),
    ):
        with pytest.raises(ResourceShortage):
            attempt()


@by_errno
def test_failed_fsync_is_no_shortage(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", fails_with(error))
    with pytest.raises(StorageError) as raised:
        OsFileSystem().sync_dir(str(tmp_path))
    assert not isinstance(raised.value, ResourceShortage)


@by_errno
async def test_partition_that_cannot_roll_is_online_after_the_shortage(files: SimFiles, error: int) -> None:
    run = Run(files, topic())
    run.write(3)
    files.fail("open", path=f"{DATA}/t-0/*", error=error, sticks=True)
    with pytest.raises(ResourceShortage):
        run.write(20)
    partition = run.partitions.get("t", 0)
    assert partition.failure is None
    run.commit.run()
    files.heal()
    run.write(5)
    end = partition.log_end_offset
    assert values_of(partition) == values(end)
    files.lose_power()
    assert values_of(Run(files, topic()).partitions.get("t", 0)) == values(end)


@by_errno
async def test_partition_that_cannot_be_created_is_created_after_the_shortage(files: SimFiles, error: int) -> None:
    run = Run(files)
    files.fail("open", path=f"{DATA}/t-1/*", error=error, sticks=True)
    await run.follow(TopicCreated(topic()), topic())
    run.write(1)
    assert run.partitions.waiting_for_space() == {"t"}
    files.heal()
    await run.follow(PartitionsChanged(topic(), ()), topic())
    run.write(2, index=1)
    assert values_of(run.partitions.get("t", 1)) == values(2)


class Ends:
    def __init__(self) -> None:
        self.rounds: list[FlushRequest] = []
        self.has_ended = asyncio.Event()

    def __call__(self, rounds: list[FlushRequest]) -> None:
        self.rounds += rounds
        if rounds:
            self.has_ended.set()


class Items:
    """Each is synced once; the opens of some fail a number of times before."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def item(self, name: str, shortages: int = 0) -> "Item":
        return Item(self, name, shortages)


class Item:
    def __init__(self, items: Items, name: str, shortages: int) -> None:
        self._items, self._name, self._shortages = items, name, shortages

    def sync(self) -> None:
        if self._shortages:
            self._shortages -= 1
            raise ResourceShortage(self._name)
        self._items.synced.append(self._name)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_backends, "RETRY_S", 0)


@pytest.mark.usefixtures("soon")
async def test_sync_without_a_descriptor_is_tried_again_and_repeats_no_finished_sync() -> None:
    ends, items = Ends(), Items()
    threads = ThreadFlushBackend(asyncio.get_running_loop(), ends)
    work = [items.item("log"), items.item("name", shortages=3), items.item("folder")]
    threads.begin(FlushRequest(None, work, 7))  # type: ignore[arg-type]
    await ends.has_ended.wait()
    threads.close()
    assert items.synced == ["log", "name", "folder"]
    assert [(one.offset, one.error) for one in ends.rounds] == [(7, None)]


async def test_close_during_a_shortage_ends_the_round_with_its_error() -> None:
    ends, items = Ends(), Items()
    threads = ThreadFlushBackend(asyncio.get_running_loop(), ends)
    threads.begin(FlushRequest(None, [items.item("name", shortages=1 << 60)], 7))  # type: ignore[arg-type]
    await asyncio.to_thread(threads.close)
    assert [type(one.error) for one in ends.rounds] == [ResourceShortage]


@by_errno
async def test_new_names_wait_for_descriptors(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsFileSystem()
    disk.open(f"{tmp_path}/file", create=True).close()
    monkeypatch.setattr(os, "open", fails_with(error))
    for item in (DirectorySync(disk, str(tmp_path)), FileSync(disk, f"{tmp_path}/file")):
        with pytest.raises(ResourceShortage):
            item.sync()
