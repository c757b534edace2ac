"""A disk that fails while cluster metadata is committed to SQLite.

SQLite reports a full disk before anything of the commit counts (SQLITE_FULL): the commit raises DiskFull, nothing of it
is visible now or after a restart, and later commits succeed once there is space. After any other error the outcome is
unknown until the file is opened again: the commit raises StorageError, and so does every later one. The file then has
the whole commit or nothing of it.
"""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.metadata.sqlite.store import SqliteStore
from headrace.model.errors import DiskFull, StorageError
from headrace.testing.local.small_disk import fill_disk, free_disk, mount_small_disk, unmount
from headrace.testing.simulation.clock import SimClock

BEFORE = {"/a": b"1", "/b": b"1"}
WRITES = {"/a": b"2", "/b": None, "/c": b"2"}
AFTER = {"/a": b"2", "/c": b"2"}
STATEMENTS = 7  # of such a commit: BEGIN, UPDATE, DELETE, UPDATE and INSERT, UPDATE of the state, COMMIT


class FailingConnection:
    """Fails the nth statement from now on, before or after SQLite has carried it out; then all is well again."""

    def __init__(self, connection: sqlite3.Connection, nth: int, code: int, *, is_done: bool) -> None:
        self._connection, self._left, self._code, self._is_done = connection, nth, code, is_done

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        self._left -= 1
        if self._left == 0 and not self._is_done:
            raise self._error()
        cursor = self._connection.execute(statement, *arguments)
        if self._left == 0:
            raise self._error()
        return cursor

    def close(self) -> None:
        self._connection.close()

    def _error(self) -> sqlite3.OperationalError:
        error = sqlite3.OperationalError("ordered by the test")
        error.sqlite_errorcode = self._code
        return error


async def open_store(path: Path) -> SqliteStore:
    return await SqliteStore.open(str(path), SimClock())


async def values(store: SqliteStore) -> dict[str, bytes]:
    return {key: entry.value for key, entry in (await store.load("/")).entries.items()}


async def reopened_values(path: Path) -> dict[str, bytes]:
    store = await open_store(path)
    try:
        return await values(store)
    finally:
        await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


@pytest.mark.parametrize("nth", range(1, STATEMENTS + 1))
async def test_full_disk_at_any_statement_changes_nothing(path: Path, nth: int) -> None:
    store = await open_store(path)
    await store.commit({}, BEFORE)
    real = store._facts._db
    store._facts._db = FailingConnection(real, nth, sqlite3.SQLITE_FULL, is_done=False)  # type: ignore[assignment]
    with pytest.raises(DiskFull):
        await store.commit({}, WRITES)
    assert await values(store) == BEFORE
    revision = (await store.load("/")).revision
    assert await store.commit({}, WRITES) == revision + 1, "a later commit succeeds"
    assert await values(store) == AFTER
    await store.close()
    assert await reopened_values(path) == AFTER


@pytest.mark.parametrize("is_done", [False, True], ids=["not carried out", "carried out"])
@pytest.mark.parametrize("nth", range(1, STATEMENTS + 1))
async def test_io_error_at_any_statement_is_an_unknown_outcome(path: Path, nth: int, is_done: bool) -> None:
    store = await open_store(path)
    await store.commit({}, BEFORE)
    real = store._facts._db
    store._facts._db = FailingConnection(real, nth, sqlite3.SQLITE_IOERR, is_done=is_done)  # type: ignore[assignment]
    with pytest.raises(StorageError) as raised:
        await store.commit({}, WRITES)
    assert not isinstance(raised.value, DiskFull), "it may have been committed"
    with pytest.raises(StorageError, match="until the node restarts"):
        await store.commit({}, {"/d": b"1"})
    assert await values(store) == BEFORE
    await store.close()
    assert await reopened_values(path) == (AFTER if is_done and nth == STATEMENTS else BEFORE)


async def test_statements_of_a_commit_are_all_covered(path: Path) -> None:
    store = await open_store(path)
    await store.commit({}, BEFORE)
    counting = FailingConnection(store._facts._db, STATEMENTS + 1, sqlite3.SQLITE_FULL, is_done=False)
    store._facts._db = counting  # type: ignore[assignment]
    await store.commit({}, WRITES)
    assert counting._left == 1
    await store.close()


async def test_wal_that_cannot_be_read_is_a_storage_error(path: Path) -> None:
    await (await open_store(path)).close()
    os.mkdir(f"{path}-wal")
    with pytest.raises(StorageError, match=r"metadata\.db-wal"):
        await open_store(path)


# A child process, because a limit of the file size holds for all of a process. What lies past it fails with EFBIG.
CHILD = """
import asyncio, json, resource, signal, sys
from headrace.metadata.sqlite.store import SqliteStore
from headrace.model.errors import DiskFull, StorageError
from headrace.testing.simulation.clock import SimClock

async def commit(store, number):
    try:
        await store.commit({}, {"/number": str(number).encode(), "/value": bytes([65 + number]) * 3000})
    except DiskFull:
        return "full"
    except StorageError:
        return "unknown"
    return "committed"

async def main():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path, limit = sys.argv[1], int(sys.argv[2])
    store = await SqliteStore.open(path, SimClock())
    outcomes = [await commit(store, 0)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    outcomes += [await commit(store, number) for number in range(1, 6)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    outcomes.append(await commit(store, 6))
    seen = {key: entry.value.decode() for key, entry in (await store.load("/")).entries.items()}
    print(json.dumps([outcomes, seen]), flush=True)
    __import__("os")._exit(0)  # as if killed: SQLite does not get to write its WAL into the file

asyncio.run(main())
"""


def committed_by_child(path: Path, limit: int) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "-c", CHILD, str(path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    outcomes, seen = json.loads(done.stdout)
    return outcomes, seen


@pytest.mark.parametrize("limit", [8_192, 20_000, 24_000, 30_001, 41_234])
async def test_commit_past_a_file_size_limit_is_not_acknowledged(path: Path, limit: int) -> None:
    outcomes, seen = committed_by_child(path, limit)
    assert outcomes[0] == "committed"
    failed = [number for number, outcome in enumerate(outcomes) if outcome != "committed"]
    assert failed, "the limit was reached"
    assert outcomes[failed[0] :] == ["unknown"] * (len(outcomes) - failed[0]), "no commit counts behind an unknown one"
    acknowledged = failed[0] - 1
    assert seen["/number"] == str(acknowledged)
    found = await reopened_values(path)
    number = int(found["/number"])
    assert number in (acknowledged, acknowledged + 1)
    assert found["/value"] == bytes([65 + number]) * 3000, "both keys are of one commit"


async def test_first_opening_on_a_full_disk_leaves_a_file_that_opens_later(tmp_path: Path) -> None:
    await _on_small_disk(tmp_path, _fill_then_open)


async def test_commit_on_a_full_file_system_fails_and_heals(tmp_path: Path) -> None:
    await _on_small_disk(tmp_path, _commit_until_full)


async def _on_small_disk(tmp_path: Path, work: Callable[[Path], Any]) -> None:
    directory = tmp_path / "disk"
    try:
        mount_small_disk(str(directory), 512 * 1024)
    except (PermissionError, OSError) as error:
        pytest.skip(str(error))
    try:
        await work(directory)
    finally:
        unmount(str(directory))


async def _fill_then_open(directory: Path) -> None:
    fill_disk(str(directory))
    with pytest.raises(StorageError):
        await open_store(directory / "metadata.db")
    free_disk(str(directory))
    store = await open_store(directory / "metadata.db")
    await store.commit({}, BEFORE)
    await store.close()
    assert await reopened_values(directory / "metadata.db") == BEFORE


async def _commit_until_full(directory: Path) -> None:
    path = directory / "metadata.db"
    store = await open_store(path)
    await store.commit({}, BEFORE)
    fill_disk(str(directory))
    seen = dict(BEFORE)

    async def commit_more() -> None:
        for number in range(100):
            writes = {"/a": str(number).encode(), "/b": bytes([number]) * 3000}
            await store.commit({}, writes)
            seen.update(writes)

    with pytest.raises(DiskFull):
        await commit_more()
    assert await values(store) == seen
    free_disk(str(directory))
    await store.commit({}, {"/c": b"there is space again"})
    await store.close()
    assert await reopened_values(path) == {**seen, "/c": b"there is space again"}
