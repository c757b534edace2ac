"""Producers are refused before the disk is full, and served again as soon as there is room (D7)."""

import logging

import pytest

from headrace.broker.log.disk_space import CHECK_EVERY_BYTES, PREALLOCATION_SHARE, RESERVE_BYTES, DiskSpaceGuard
from headrace.model.errors import DiskFull, ErrorCode
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.io.preallocation import PREALLOCATED_BYTES

MIB = 1024 * 1024


class Disk(MemoryFiles):
    def __init__(self, free: int, total: int | None = None) -> None:
        super().__init__()
        self.free = free
        self.total = free if total is None else total
        self.asked = 0

    def free_bytes(self, path: str) -> int:
        self.asked += 1
        return self.free

    def total_bytes(self, path: str) -> int:
        return self.total


def fill(reserve: DiskSpaceGuard, disk: Disk, batch: int) -> int:
    """Write until refused; how much was written."""
    written = 0
    while True:
        try:
            reserve.check(batch)
        except DiskFull:
            return written
        disk.free -= batch
        written += batch


@pytest.mark.parametrize("batch", [1_000, 100_000, MIB])
def test_writing_stops_while_there_is_still_room(batch: int) -> None:
    disk = Disk(1_000 * MIB)
    reserve = DiskSpaceGuard(disk, "/data")
    assert reserve.reserve_bytes == RESERVE_BYTES
    fill(reserve, disk, batch)
    assert RESERVE_BYTES // 2 < disk.free <= RESERVE_BYTES + CHECK_EVERY_BYTES


def test_a_small_disk_has_a_small_reserve_and_stays_useful() -> None:
    disk = Disk(20 * MIB)
    reserve = DiskSpaceGuard(disk, "/data")
    written = fill(reserve, disk, 10_000)
    assert written > 15 * MIB
    assert disk.free > MIB // 2


def test_the_refusal_says_what_to_do_and_is_a_storage_error() -> None:
    disk = Disk(1_000 * MIB)
    reserve = DiskSpaceGuard(disk, "/data")
    disk.free = 1
    with pytest.raises(DiskFull, match="delete topics or records") as refused:
        reserve.check(CHECK_EVERY_BYTES)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_it_heals_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(1_000 * MIB)
    reserve = DiskSpaceGuard(disk, "/data")
    fill(reserve, disk, MIB)
    with pytest.raises(DiskFull):
        reserve.check(1)
    disk.free = 500 * MIB
    with caplog.at_level(logging.INFO):
        reserve.check(1)


def test_the_file_system_is_asked_seldom_while_there_is_room() -> None:
    disk = Disk(1_000 * MIB)
    reserve = DiskSpaceGuard(disk, "/data")
    asked = disk.asked
    for _ in range(1_000):
        reserve.check(100)
    assert disk.asked == asked


def test_room_is_not_short_and_enough_in_turns_at_the_brink() -> None:
    disk = Disk(1000 * MIB)
    reserve = DiskSpaceGuard(disk, "/data")
    disk.free = reserve.reserve_bytes - 1
    assert reserve.is_short(was_short=False)
    disk.free = reserve.reserve_bytes + 1
    assert reserve.is_short(was_short=True)
    assert not reserve.is_short(was_short=False)
    disk.free = 2 * reserve.reserve_bytes
    assert not reserve.is_short(was_short=True)


@pytest.mark.parametrize("free", [0, 1, 40 * MIB])
def test_start_on_a_full_disk_rejects_the_first_batch(free: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(free, total=1_000 * MIB)
    reserve = DiskSpaceGuard(disk, "/data")
    assert reserve.is_short(was_short=False)
    for _ in range(100):
        with pytest.raises(DiskFull):
            reserve.check(1)
    assert len(caplog.records) == 1, "one line per state change, not one per batch"
    disk.free = 500 * MIB
    reserve.check(1)


@pytest.mark.parametrize("total", [20 * MIB, 128 * MIB, 1_000 * MIB])
def test_preallocation_stops_above_the_reserve(total: int) -> None:
    disk = Disk(total)
    reserve = DiskSpaceGuard(disk, "/data")
    taken = 0
    while reserve.may_preallocate(PREALLOCATED_BYTES):
        disk.free -= PREALLOCATED_BYTES
        taken += PREALLOCATED_BYTES
    assert disk.free >= PREALLOCATION_SHARE * reserve.reserve_bytes
    assert taken > total // 2
    reserve.check(1_000)  # producers are not rejected because of it
    disk.free += 10 * PREALLOCATED_BYTES
    fill(reserve, disk, 1_000)
    assert not reserve.may_preallocate(PREALLOCATED_BYTES)


def test_preallocation_seldom_asks_the_file_system() -> None:
    disk = Disk(1_000 * MIB)
    reserve = DiskSpaceGuard(disk, "/data")
    disk.asked = 0
    for _ in range(1_000):
        assert reserve.may_preallocate(PREALLOCATED_BYTES)
    assert disk.asked <= 1_000 * PREALLOCATED_BYTES / CHECK_EVERY_BYTES + 1


def test_preallocation_that_is_refused_asks_for_no_look_at_the_disk() -> None:
    disk = Disk(RESERVE_BYTES, total=1_000 * MIB)
    reserve = DiskSpaceGuard(disk, "/data")
    disk.asked = 0
    assert not any(reserve.may_preallocate(PREALLOCATED_BYTES) for _ in range(1_000))
    assert disk.asked == 0
