"""Group commit by threads: syncs are shared, failures reach the right partition, nothing ends a thread.

On a simulated disk, which only threads can sync. What holds for a real one is in `test_durable_commit.py`.
"""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from headrace.broker.replica.flush_backends import THREADS_MAX
from headrace.broker.replica.log_flusher import LogFlusher
from headrace.broker.replica.partition import Partition
from headrace.model.errors import ErrorCode
from headrace.testing import SimFiles
from tests.unit.broker.connection_kit import until
from tests.unit.broker.partition_kit import Waiter, new_partition, produce, produce_in_turns, values_of


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        disk.make_dir("/data")
        yield disk


@pytest.fixture
async def commit(files: SimFiles) -> AsyncIterator[LogFlusher]:
    group_commit = LogFlusher(asyncio.get_running_loop())
    yield group_commit
    group_commit.close()


def syncs(files: SimFiles, path: str) -> int:
    return sum(1 for operation, of in files.operations if operation == "sync" and of == path)


class Gate:
    """Holds the thread at the next sync until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def sync(self) -> None:
        self.reached.set()
        assert self.opened.wait(5)


async def hold(partition: Partition) -> Gate:
    """A round that is under way, and stays under way."""
    gate = Gate()
    partition.log.flush_before_next([gate])
    produce(partition, "holds the disk")
    await until(gate.reached.is_set)
    return gate


async def test_a_batch_is_committed_when_its_sync_is_over(files: SimFiles, commit: LogFlusher) -> None:
    partition = new_partition(files, commit)
    waiter = Waiter()
    partition.wait_for_commit(produce(partition, "a").next_offset, waiter)
    await until(lambda: waiter.commits == 1)
    assert values_of(partition) == ["a"]


async def test_batches_that_come_while_their_partition_is_synced_share_its_next_sync(
    files: SimFiles, commit: LogFlusher
) -> None:
    partition = new_partition(files, commit)
    gate = await hold(partition)
    for number in range(8):
        produce(partition, f"value {number}")
        await asyncio.sleep(0)
    gate.opened.set()
    await until(lambda: partition.high_watermark == 9)
    assert syncs(files, partition.log.active.path) == 2


async def test_nobody_waits_for_the_sync_of_another_partition(files: SimFiles, commit: LogFlusher) -> None:
    held = [new_partition(files, commit, index=index) for index in range(THREADS_MAX - 1)]
    gates = [await hold(partition) for partition in held]
    quick = new_partition(files, commit, index=THREADS_MAX)
    produce(quick, "a")
    await until(lambda: quick.high_watermark == 1)
    assert [partition.high_watermark for partition in held] == [0] * len(held)
    for gate in gates:
        gate.opened.set()
    await until(lambda: all(partition.high_watermark == 1 for partition in held))


async def test_more_partitions_than_threads_are_all_synced(files: SimFiles, commit: LogFlusher) -> None:
    partitions = [new_partition(files, commit, index=index) for index in range(5 * THREADS_MAX)]
    await produce_in_turns(partitions, 3)
    await until(lambda: all(partition.high_watermark == 3 for partition in partitions))


async def test_batches_of_one_turn_of_the_loop_share_a_round(files: SimFiles, commit: LogFlusher) -> None:
    partitions = [new_partition(files, commit, index=index) for index in range(5)]
    for partition in partitions:
        for number in range(3):
            produce(partition, f"value {number}")
    await until(lambda: all(partition.high_watermark == 3 for partition in partitions))
    assert [syncs(files, partition.log.active.path) for partition in partitions] == [1] * 5


async def test_what_comes_during_a_sync_is_not_committed_by_it(files: SimFiles, commit: LogFlusher) -> None:
    partition = new_partition(files, commit)
    gate = await hold(partition)
    produce(partition, "later")
    committed: list[int] = []
    told = partition.synced
    partition.synced = lambda offset: (committed.append(offset), told(offset))[1]  # type: ignore[method-assign]
    gate.opened.set()
    await until(lambda: partition.high_watermark == 2)
    assert committed == [1, 2]


async def test_d6_a_failed_sync_concerns_its_own_partition_only(files: SimFiles, commit: LogFlusher) -> None:
    broken, sound = new_partition(files, commit), new_partition(files, commit, index=1)
    files.fail("sync", path="/data/t-0/*.log")
    lost, kept = Waiter(), Waiter()
    broken.wait_for_commit(produce(broken, "lost").next_offset, lost)
    sound.wait_for_commit(produce(sound, "kept").next_offset, kept)
    await until(lambda: bool(lost.failures) and kept.commits == 1)
    assert [error.code for error in lost.failures] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert (lost.commits, broken.high_watermark, sound.high_watermark) == (0, 0, 1)


async def test_d6_the_round_after_a_failed_sync_commits_nothing_of_that_partition(
    files: SimFiles, commit: LogFlusher
) -> None:
    partition, other = new_partition(files, commit), new_partition(files, commit, index=1)
    gate = await hold(partition)
    files.fail("sync", path="/data/t-0/*.log")
    waiter = Waiter()
    partition.wait_for_commit(produce(partition, "in the next round").next_offset, waiter)
    gate.opened.set()
    await until(lambda: partition.failure is not None)
    produce(other, "a")
    await until(lambda: other.high_watermark == 1)
    assert (waiter.commits, len(waiter.failures)) == (0, 1)
    assert (partition.high_watermark, partition.log.recovery_point) == (0, 0)


@pytest.mark.parametrize("mishap", [FileNotFoundError("the folder was renamed"), ValueError("our own mistake")])
async def test_nothing_ends_the_thread(
    files: SimFiles, commit: LogFlusher, mishap: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Mishap:
        def sync(self) -> None:
            raise mishap

    broken, sound = new_partition(files, commit), new_partition(files, commit, index=1)
    broken.log.flush_before_next([Mishap()])
    produce(broken, "a")
    await until(lambda: broken.failure is not None)
    produce(sound, "b")
    await until(lambda: sound.high_watermark == 1)
    assert str(mishap) in caplog.text


async def test_closing_waits_for_the_round_under_way_and_tells_its_result(files: SimFiles) -> None:
    commit = LogFlusher(asyncio.get_running_loop())
    partition = new_partition(files, commit)
    gate = await hold(partition)
    files.fail("sync", path="/data/t-0/*.log")
    threading.Timer(0.01, gate.opened.set).start()
    commit.close()
    assert partition.failure is not None, "else it would be closed as if nothing had happened"


async def test_after_closing_what_is_not_synced_stays_with_its_log(files: SimFiles) -> None:
    commit = LogFlusher(asyncio.get_running_loop())
    partition = new_partition(files, commit)
    gate = await hold(partition)
    produce(partition, "late")
    gate.opened.set()
    commit.close()
    produce(partition, "later")
    await asyncio.sleep(0)
    work, end = partition.log.unsynced()
    assert partition.log.active.file in work
    assert end == 3
