"""Group commit on a real disk: the same whether the kernel syncs by itself or threads do."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.broker.replica.log_flusher import LogFlusher
from headrace.broker.replica.partition import Partition
from headrace.model.errors import ErrorCode
from headrace.storage.io.file_system import OsFileSystem
from headrace.storage.io.io_uring import IoUringFsync
from tests.unit.broker.connection_kit import until
from tests.unit.broker.partition_kit import Waiter, new_partition, produce, produce_in_turns, values_of

RING_ENTRIES = 4  # few, so that the tests find out what happens when there is no room


class ReluctantRing(IoUringFsync):
    """The kernel's, but for faults that cannot be had of a kernel at will."""

    is_short_of_memory = False
    interruptions = 0
    submissions = 0

    def submit(self) -> int:
        self.submissions += 1
        if not self.is_short_of_memory:
            return super().submit()
        self._words[self._submission_tail] = self._words[self._submission_head]
        return 0

    def completions(self) -> list[tuple[int, int]]:
        found = super().completions()
        if self.interruptions and found:
            self.interruptions -= 1
            found[0] = (found[0][0], -errno.EINTR)
        return found


def new_ring() -> ReluctantRing:
    try:
        return ReluctantRing(RING_ENTRIES)
    except OSError as error:
        pytest.skip(f"no io_uring here: {error}")


@pytest.fixture
def ring() -> ReluctantRing:
    return new_ring()


@pytest.fixture
async def by_ring(ring: ReluctantRing) -> AsyncIterator[LogFlusher]:
    group_commit = LogFlusher(asyncio.get_running_loop(), ring)
    yield group_commit
    group_commit.close()


@pytest.fixture(params=["ring", "threads"])
async def commit(request: pytest.FixtureRequest) -> AsyncIterator[LogFlusher]:
    group_commit = LogFlusher(asyncio.get_running_loop(), new_ring() if request.param == "ring" else None)
    yield group_commit
    group_commit.close()


class Disk:
    """Partitions in a folder, whose first round is over: their names are on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.partitions: list[Partition] = []

    async def partition(self, commit: LogFlusher) -> Partition:
        partition = new_partition(OsFileSystem(), commit, index=len(self.partitions), folder=self._folder)
        self.partitions.append(partition)
        produce(partition, "first")
        await until(lambda: partition.high_watermark == 1)
        return partition


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    for partition in disk.partitions:
        if partition.failure is None:
            partition.log.close()


def break_file(partition: Partition) -> None:
    """From now on the kernel refuses to sync it: its descriptor is a socket's."""
    with socket.socket() as no_file:
        os.dup2(no_file.fileno(), partition.log.active.file.fileno())


async def begun() -> None:
    """Rounds begin in the next turn of the loop; a turn later nobody has looked for their results yet."""
    await asyncio.sleep(0)


async def test_a_batch_is_committed_when_its_sync_is_over(disk: Disk, commit: LogFlusher) -> None:
    partition = await disk.partition(commit)
    waiter = Waiter()
    partition.wait_for_commit(produce(partition, "a").next_offset, waiter)
    assert (waiter.commits, partition.high_watermark) == (0, 1)
    await until(lambda: waiter.commits == 1)
    assert values_of(partition) == ["first", "a"]
    assert partition.log.recovery_point == 2


async def test_more_partitions_than_the_ring_has_room_for_are_all_synced(disk: Disk, commit: LogFlusher) -> None:
    partitions = [await disk.partition(commit) for _ in range(5 * RING_ENTRIES)]
    await produce_in_turns(partitions, 20)
    await until(lambda: all(partition.high_watermark == 21 for partition in partitions))


async def test_a_new_segment_is_synced_with_its_name(disk: Disk, commit: LogFlusher) -> None:
    partition = await disk.partition(commit)
    for number in range(50):
        produce(partition, f"value {number}" * 5)
        await begun()
    await until(lambda: partition.high_watermark == 51)
    assert len(partition.log.segments) > 2
    assert partition.log.recovery_point == 51


async def test_d6_a_failed_sync_concerns_its_own_partition_only(disk: Disk, commit: LogFlusher) -> None:
    broken, sound = await disk.partition(commit), await disk.partition(commit)
    lost, kept = Waiter(), Waiter()
    broken.wait_for_commit(produce(broken, "lost").next_offset, lost)
    sound.wait_for_commit(produce(sound, "kept").next_offset, kept)
    break_file(broken)
    await until(lambda: bool(lost.failures) and kept.commits == 1)
    assert [error.code for error in lost.failures] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert "Invalid argument" in str(broken.failure)
    assert (lost.commits, broken.high_watermark, sound.high_watermark) == (0, 1, 2)


async def test_d6_a_failed_sync_is_not_repeated(disk: Disk, commit: LogFlusher) -> None:
    partition = await disk.partition(commit)
    produce(partition, "lost")
    await begun()
    sound = os.dup(partition.log.active.file.fileno())
    waiter = Waiter()
    partition.wait_for_commit(produce(partition, "in the next round").next_offset, waiter)
    break_file(partition)
    await until(lambda: partition.failure is not None)
    os.dup2(sound, partition.log.active.file.fileno())
    os.close(sound)
    await begun()
    assert (waiter.commits, len(waiter.failures)) == (0, 1)


async def test_closing_waits_for_the_round_under_way_and_tells_its_result(disk: Disk, commit: LogFlusher) -> None:
    sound, broken = await disk.partition(commit), await disk.partition(commit)
    produce(sound, "kept")
    produce(broken, "lost")
    break_file(broken)
    await begun()
    commit.close()
    assert (sound.high_watermark, sound.failure) == (2, None)
    assert broken.failure is not None, "else it would be closed as if nothing had happened"


async def test_rounds_of_one_turn_of_the_loop_begin_with_one_call(
    disk: Disk, by_ring: LogFlusher, ring: ReluctantRing
) -> None:
    partitions = [await disk.partition(by_ring) for _ in range(RING_ENTRIES)]
    before = ring.submissions
    for partition in partitions:
        produce(partition, "a")
    await until(lambda: all(partition.high_watermark == 2 for partition in partitions))
    assert ring.submissions == before + 1


async def test_what_the_kernel_has_no_memory_for_is_done_by_threads(
    disk: Disk, by_ring: LogFlusher, ring: ReluctantRing
) -> None:
    partition = await disk.partition(by_ring)
    before, ring.is_short_of_memory = ring.submissions, True
    produce(partition, "a")
    await until(lambda: partition.high_watermark == 2)
    assert ring.submissions == before + 1


async def test_a_sync_that_was_interrupted_is_begun_again(disk: Disk, by_ring: LogFlusher, ring: ReluctantRing) -> None:
    partition = await disk.partition(by_ring)
    ring.interruptions = 1
    produce(partition, "a")
    await until(lambda: partition.high_watermark == 2)
    assert (ring.interruptions, partition.failure) == (0, None)


async def test_a_file_that_is_closed_meanwhile_does_not_count_as_synced(disk: Disk, by_ring: LogFlusher) -> None:
    partition = await disk.partition(by_ring)
    produce(partition, "a")
    await begun()
    partition.log.active.file.close()
    await until(lambda: partition.failure is not None)
    assert "closed before it was synced" in str(partition.failure)
    assert partition.high_watermark == 1


async def test_every_round_counts_in_the_durations(disk: Disk, commit: LogFlusher) -> None:
    partition = await disk.partition(commit)
    produce(partition, "a")
    await until(lambda: partition.high_watermark == 2)
    assert sum(commit.durations.value().counts) == 2
