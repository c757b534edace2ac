"""What the SQLite store promises beyond the port: it survives kill -9 and notices damage to its file."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.metadata.sqlite.store import SqliteStore
from headrace.model.errors import CorruptLog, DiskFull, StorageError
from headrace.testing.simulation.clock import SimClock

# Commits for ever and says each number only after its commit has returned; half of the commits also delete.
WRITER = """
import asyncio, sys
from headrace.metadata.sqlite.store import SqliteStore
from headrace.testing.simulation.clock import SimClock

async def main():
    store = await SqliteStore.open(sys.argv[1], SimClock())
    number = int(sys.argv[2])
    while True:
        writes = {f"/fact/{number}": b"x" * (number % 5000), "/newest": str(number).encode()}
        if number % 2:
            writes[f"/fact/{number - 1}"] = None
        await store.commit({}, writes)
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


async def open_store(path: Path) -> SqliteStore:
    return await SqliteStore.open(str(path), SimClock())


async def load_all(path: Path) -> dict[str, bytes]:
    store = await open_store(path)
    try:
        return {key: entry.value for key, entry in (await store.load("/")).entries.items()}
    finally:
        await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


def acked_before_kill(path: Path, first: int, commits: int) -> int:
    """The last commit that a writer saw return before it was killed."""
    command = [sys.executable, "-c", WRITER, str(path), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(commits):
            writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        lines = writer.stdout.read().split()
    return int(lines[-1]) if lines else first + commits - 1


async def test_d11_every_commit_that_returned_is_there_after_kill_9(path: Path) -> None:
    chance = random.Random(1)
    first = 0
    for _ in range(5):
        acked = acked_before_kill(path, first, commits=chance.randrange(1, 300))
        facts = await load_all(path)
        newest = int(facts["/newest"])
        assert newest in (acked, acked + 1)  # one more may have been on its way
        expected = {number for number in range(newest + 1) if number % 2 or number == newest}
        assert {int(key.removeprefix("/fact/")) for key in facts if key != "/newest"} == expected
        first = newest + 1


async def test_facts_versions_and_revision_survive_reopening(path: Path) -> None:
    store = await open_store(path)
    await store.commit({}, {"/a": b"1"})
    await store.commit({}, {"/b": b"2"})
    before = await store.load("/")
    await store.close()
    reopened = await open_store(path)
    assert await reopened.load("/") == before
    assert await reopened.commit({"/a": before.entries["/a"].version}, {"/a": b"3"}) == before.revision + 1
    await reopened.close()


async def test_keys_under_a_lease_do_not_outlive_the_process(path: Path) -> None:
    store = await open_store(path)
    await store.commit({}, {"/brokers/1": b"here"}, await store.grant(60_000))
    await store.commit({}, {"/topics/t": b"stays"})
    await store.close()
    assert set(await load_all(path)) == {"/topics/t"}


async def test_d11_wal_is_synced_at_every_commit(path: Path) -> None:
    store = await open_store(path)

    def pragma(name: str) -> object:
        return store._facts._db.execute(f"PRAGMA {name}").fetchone()[0]

    full = 2
    on_thread = asyncio.get_running_loop().run_in_executor
    assert await on_thread(store._thread, pragma, "journal_mode") == "wal"
    assert await on_thread(store._thread, pragma, "synchronous") == full
    await store.close()


async def test_a_second_process_cannot_open_the_facts_of_a_running_node(path: Path) -> None:
    store = await open_store(path)
    with pytest.raises(StorageError, match="in use"):
        await open_store(path)
    await store.commit({}, {"/a": b"still mine"})
    await store.close()


async def test_no_thread_and_no_file_stays_behind_after_close(path: Path) -> None:
    store = await open_store(path)
    await store.commit({}, {"/a": b"1"})
    await store.close()
    assert not [thread for thread in threading.enumerate() if "metadata" in thread.name]
    assert os.listdir(path.parent) == [path.name]


async def test_a_missing_directory_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"metadata\.db"):
        await open_store(tmp_path / "missing" / "metadata.db")
    assert not [thread for thread in threading.enumerate() if "metadata" in thread.name]


async def test_something_else_than_a_database_is_a_storage_error(path: Path) -> None:
    _overwrite(path, b"certainly not a database" * 100)
    with pytest.raises(StorageError, match="not a database"):
        await open_store(path)


async def test_a_file_of_another_format_is_refused(path: Path) -> None:
    await (await open_store(path)).close()
    _edit(path, "PRAGMA user_version=99")
    with pytest.raises(StorageError, match="format 99"):
        await open_store(path)


async def test_a_fact_with_a_flipped_bit_is_never_served(path: Path) -> None:
    store = await open_store(path)
    await store.commit({}, {"/a": b"some value", "/b": b"2"})
    await store.close()
    _replace(path, b"some value", b"some vblue")
    with pytest.raises(CorruptLog, match="/a"):
        await open_store(path)


async def test_a_lost_fact_is_noticed(path: Path) -> None:
    store = await open_store(path)
    await store.commit({}, {"/a": b"1", "/b": b"2"})
    await store.close()
    _edit(path, "DELETE FROM facts WHERE key = '/a'")
    with pytest.raises(CorruptLog, match="1 records instead of 2"):
        await open_store(path)


async def test_a_full_disk_refuses_the_commit_and_heals(path: Path) -> None:
    store = await open_store(path)
    await store.commit({}, {"/a": b"1"})
    on_thread = asyncio.get_running_loop().run_in_executor

    def set_page_limit(pages: int) -> None:
        store._facts._db.execute(f"PRAGMA max_page_count={pages}")

    await on_thread(store._thread, set_page_limit, 4)
    with pytest.raises(DiskFull):
        await store.commit({}, {"/a": b"2", "/big": b"x" * 100_000})
    assert set((await store.load("/")).entries) == {"/a"}
    await on_thread(store._thread, set_page_limit, 1_000_000)
    await store.commit({}, {"/a": b"3", "/big": b"x" * 100_000})
    await store.close()
    assert (await load_all(path))["/a"] == b"3"


async def test_after_an_io_error_no_write_is_acknowledged(path: Path) -> None:
    store = await open_store(path)
    await store.commit({}, {"/a": b"1"})

    class FailingDisk:
        def execute(self, statement: str, *_: object) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

    healthy, store._facts._db = store._facts._db, FailingDisk()  # type: ignore[assignment]
    with pytest.raises(StorageError):
        await store.commit({}, {"/a": b"2"})
    store._facts._db = healthy
    with pytest.raises(StorageError, match="failed earlier"):
        await store.commit({}, {"/a": b"3"})
    assert (await store.load("/")).entries["/a"].value == b"1"
    await store.close()
    assert await load_all(path) == {"/a": b"1"}


def _overwrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _replace(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new))


def _edit(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()
