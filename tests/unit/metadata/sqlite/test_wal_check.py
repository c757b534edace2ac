"""A damaged WAL is told from a torn one."""

import shutil
from pathlib import Path

import pytest

from headrace.metadata.sqlite.store import SqliteStore
from headrace.model.errors import CorruptLog
from headrace.testing.simulation.clock import SimClock

HEADER_BYTES = 32
PAGE_BYTES = 4096
FRAME_BYTES = 24 + PAGE_BYTES


@pytest.fixture
async def crashed(tmp_path: Path) -> Path:
    """The files of a node that died after ten commits, none of them checkpointed."""
    path = tmp_path / "live.db"
    store = await SqliteStore.open(str(path), SimClock())
    for number in range(10):
        await store.commit({}, {f"/{number}": b"x"})
    copy = tmp_path / "crashed.db"
    shutil.copy(path, copy)
    shutil.copy(f"{path}-wal", f"{copy}-wal")
    await store.close()
    return copy


async def facts_in(path: Path) -> int:
    store = await SqliteStore.open(str(path), SimClock())
    try:
        return len((await store.load("/")).entries)
    finally:
        await store.close()


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def frame_count(path: Path) -> int:
    return (wal_of(path).stat().st_size - HEADER_BYTES) // FRAME_BYTES


async def test_a_sound_wal_gives_back_every_commit(crashed: Path) -> None:
    assert await facts_in(crashed) == 10


async def test_a_wal_torn_in_its_last_commit_loses_only_that(crashed: Path) -> None:
    wal = wal_of(crashed)
    wal.write_bytes(wal.read_bytes()[:-100])
    assert await facts_in(crashed) == 9


async def test_a_bit_flipped_in_the_last_commit_looks_torn(crashed: Path) -> None:
    flip(wal_of(crashed), -50)
    assert await facts_in(crashed) == 9


@pytest.mark.parametrize("within_frame", [5, 10, 17, 24, 2000, FRAME_BYTES - 1])
@pytest.mark.parametrize("frame", [0, 3, 6])
async def test_a_bit_flipped_before_later_commits_is_damage(crashed: Path, frame: int, within_frame: int) -> None:
    assert frame_count(crashed) > 10
    flip(wal_of(crashed), HEADER_BYTES + frame * FRAME_BYTES + within_frame)
    with pytest.raises(CorruptLog, match="corrupt"):
        await facts_in(crashed)


@pytest.mark.parametrize("position", [0, 3, 8, 16, 20, 24, 31])
async def test_a_bit_flipped_in_the_header_is_damage(crashed: Path, position: int) -> None:
    flip(wal_of(crashed), position)
    with pytest.raises(CorruptLog, match="corrupt"):
        await facts_in(crashed)


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES])
async def test_a_wal_that_was_never_synced_is_empty(crashed: Path, size: int, tmp_path: Path) -> None:
    path = tmp_path / "fresh.db"
    await (await SqliteStore.open(str(path), SimClock())).close()
    wal_of(path).write_bytes(bytes(size))
    assert await facts_in(path) == 0


async def test_frames_of_an_earlier_generation_behind_the_end_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    store = await SqliteStore.open(str(path), SimClock())
    for number in range(1000):  # more pages than SQLite checkpoints at, so that the WAL starts over
        await store.commit({}, {f"/{number % 50}": b"x"})
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    shutil.copy(wal_of(path), wal_of(copy))
    await store.close()
    assert await facts_in(copy) == 50
