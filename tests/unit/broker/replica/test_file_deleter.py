"""Removals of files run in a thread of their own, so that no sync and no metadata change waits behind them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.image.deltas import TopicDeleted
from headrace.model.ids import TopicPartition
from headrace.storage.directory.checkpoint_files import LOG_STARTS, read_offsets
from headrace.testing import SimFiles
from tests.unit.broker.replica.test_replica_manager import DATA, Run, topic
from tests.unit.storage.log_kit import batch_of

PARTITIONS = 50


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


def note_threads(files: SimFiles, operation: str) -> list[int]:
    """The threads that call the operation from now on, one entry for each call."""
    threads: list[int] = []
    original = getattr(files, operation)

    def noted(path: str) -> None:
        threads.append(threading.get_ident())
        original(path)

    setattr(files, operation, noted)
    return threads


async def default_threads(count: int) -> set[int]:
    """Every thread of the default executor, which gets as many."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(count))
    barrier = threading.Barrier(count)

    def ident() -> int:
        barrier.wait()
        return threading.get_ident()

    return set(await asyncio.gather(*(asyncio.to_thread(ident) for _ in range(count))))


async def test_deletion_of_many_partitions_leaves_the_default_executor_free(files: SimFiles) -> None:
    shared = await default_threads(2)
    run = Run(files, topic(partitions=PARTITIONS))
    removers = note_threads(files, "remove_tree")
    await run.follow(TopicDeleted(topic(partitions=PARTITIONS)))
    await run.removed()
    assert len(removers) == PARTITIONS
    assert len(set(removers)) == 1
    assert not shared.intersection(removers)
    assert not [name for name in files.list(DATA) if name.endswith("-delete")]


async def test_removal_below_a_new_log_start_leaves_the_default_executor_free(files: SimFiles) -> None:
    shared = await default_threads(2)
    run = Run(files, topic())
    run.write(20)
    removers = note_threads(files, "remove")
    run.partitions.get("t", 0).move_log_start(10)
    await run.removed()
    run.partitions.get("t", 0).delete_records(15)
    await run.partitions.removals.settle_log_starts()
    await run.removed()
    assert removers
    assert not shared.intersection(removers)


async def test_records_are_deleted_on_a_disk_full_to_the_last_byte(files: SimFiles) -> None:
    run = Run(files, topic())
    run.write(20)
    log_dir = run.partitions.log_dir
    for partition in run.partitions.all():
        log_dir.note_high_watermark(TopicPartition(partition.topic, partition.index), 20)
    log_dir.write_high_watermarks()
    files.capacity_bytes = files.used_bytes()
    run.partitions.get("t", 0).delete_records(1)
    await run.partitions.removals.settle_log_starts()
    rows = read_offsets(files, f"{DATA}/{LOG_STARTS}")
    assert rows[TopicPartition("t", 0)] == 1


async def test_repair_after_a_failed_sync_does_not_wait_for_removals(files: SimFiles) -> None:
    run = Run(files, topic())
    removals = run.partitions.removals
    may_remove, repaired = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    removals.remove_in_background(may_remove.wait)
    removals.in_background(lambda: loop.call_soon_threadsafe(repaired.set))
    await repaired.wait()
    may_remove.set()
    await run.removed()


async def test_close_ends_the_thread_of_the_removals(files: SimFiles) -> None:
    before = set(threading.enumerate())
    run = Run(files, topic())
    await run.follow(TopicDeleted(topic()))
    await run.partitions.close()
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("headrace-removals"):
            thread.join()


async def test_stop_drops_removals_and_the_next_start_does_them(files: SimFiles) -> None:
    run = Run(files, topic(partitions=PARTITIONS), topic("kept", number=8))
    run.write(3, "kept")
    removals = run.partitions.removals
    begun, may_go_on = threading.Event(), threading.Event()

    def removal_under_way() -> None:
        begun.set()
        may_go_on.wait()

    removals.remove_in_background(removal_under_way)
    await asyncio.to_thread(begun.wait)
    await run.follow(TopicDeleted(topic(partitions=PARTITIONS)), topic("kept", number=8))
    run.partitions.get("kept", 0).move_log_start(2)
    removed = note_threads(files, "remove_tree")
    mark_clean, is_clean = run.log_dir.mark_clean, asyncio.Event()
    run.log_dir.mark_clean = lambda: (mark_clean(), is_clean.set())[0]  # type: ignore[func-returns-value, method-assign]
    closing = asyncio.create_task(run.partitions.close())
    await is_clean.wait()
    assert not closing.done(), "the logs are closed while a removal is under way"
    may_go_on.set()
    await closing
    assert not removed
    assert read_offsets(files, f"{DATA}/{LOG_STARTS}")[TopicPartition("kept", 0)] == 2

    loop_thread = threading.get_ident()
    again = Run(files, topic("kept", number=8))
    await again.removed()
    assert len(removed) == PARTITIONS
    assert loop_thread not in removed, "the start does not wait for them"
    assert not [name for name in files.list(DATA) if name.endswith("-delete")]
    assert again.partitions.get("kept", 0).log_start_offset == 2
    await again.partitions.close()


async def test_many_deletions_of_records_share_a_write(files: SimFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would occupy a thread of the default executor while it waits for the disk."""
    run = Run(files, topic(partitions=20))
    removals = run.partitions.removals
    writes = 0
    released = asyncio.Event()

    async def in_thread(work: Callable[..., None], *arguments: object) -> None:
        nonlocal writes
        writes += 1
        await released.wait()
        work(*arguments)

    monkeypatch.setattr("headrace.broker.replica.file_deleter.asyncio.to_thread", in_thread)
    requests = []
    for index in range(20):
        partition = run.partitions.get("t", index)
        partition.append(memoryview(bytearray(batch_of(["a"]))), 1, 0)
        partition.move_log_start(1, at_once=True)
        requests.append(asyncio.create_task(removals.settle_log_starts()))
        await asyncio.sleep(0)
    assert writes == 1
    released.set()
    await asyncio.gather(*requests)
    assert writes == 2, "one for the first request, one for all others"
    starts = read_offsets(files, f"{DATA}/{LOG_STARTS}")
    assert {index: starts[TopicPartition("t", index)] for index in range(20)} == dict.fromkeys(range(20), 1)
