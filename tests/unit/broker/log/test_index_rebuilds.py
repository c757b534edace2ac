"""A corrupt index of a large segment: the event loop does not wait for its rebuild, and operations go on after it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from headrace.broker.replica.partition import Partition
from headrace.storage.segment import log_segment as segment_module
from headrace.storage.segment.index_rebuild import IndexRebuild, IndexRebuilding
from headrace.testing import SimFiles
from tests.unit.broker.replica.test_replica_manager import Run, topic

STEM = "/data/t-0/00000000000000000000"
RECORDS = 40


@pytest.fixture
async def run(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    """Partitions after a clean stop, with an index that names no batch."""
    with SimFiles() as files:
        described = topic()._replace(configs={"index.interval.bytes": "100", "internal.segment.bytes": "1000000"})
        before = Run(files, described)
        before.write(RECORDS)
        await before.partitions.close()
        index = files.read(f"{STEM}.index")
        assert len(index) > 100
        for byte in range(7, len(index) - 8, 8):
            files.flip_bit(f"{STEM}.index", byte=byte)
        monkeypatch.setattr(segment_module, "REINDEX_AT_ONCE_BYTES", 100)
        run = Run(files, described)
        yield run
        await run.partitions.close()


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that read segments for a rebuild."""
    threads: list[int] = []
    original = IndexRebuild.read

    def read(self: IndexRebuild) -> None:
        threads.append(threading.get_ident())
        original(self)

    monkeypatch.setattr(IndexRebuild, "read", read)
    return threads


def base_offset_at(partition: Partition, offset: int) -> int:
    found = partition.read_uncommitted(offset, 1)
    assert found is not None
    return int.from_bytes(found.read()[:8], "big")


async def test_read_is_retried_after_one_rebuild_in_a_thread(run: Run, readers: list[int]) -> None:
    partition = run.partitions.get("t", 0)
    waits = []
    for offset in (20, 25, 30):
        with pytest.raises(IndexRebuilding) as raised:
            base_offset_at(partition, offset)
        waits.append(raised.value.rebuilt())
    assert raised.value.retriable
    assert partition.failure is None
    await asyncio.gather(*waits)
    assert [base_offset_at(partition, offset) for offset in range(RECORDS)] == list(range(RECORDS))
    assert len(readers) == 1
    assert threading.get_ident() not in readers


async def test_truncation_goes_on_after_the_rebuild(run: Run, readers: list[int]) -> None:
    partition = run.partitions.get("t", 0)
    assert await run.partitions.truncate(partition, 30)
    assert partition.log_end_offset == 30
    assert len(readers) == 1


async def test_records_appended_during_the_rebuild_are_indexed(run: Run, readers: list[int]) -> None:
    partition = run.partitions.get("t", 0)
    with pytest.raises(IndexRebuilding) as raised:
        base_offset_at(partition, 30)
    run.write(RECORDS)
    await raised.value.rebuilt()
    assert [base_offset_at(partition, offset) for offset in range(2 * RECORDS)] == list(range(2 * RECORDS))
    assert len(readers) == 1


async def test_truncated_segment_is_read_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = run.partitions.get("t", 0)
    original, reads = IndexRebuild.read, 0

    def read(self: IndexRebuild) -> None:
        nonlocal reads
        reads += 1
        if reads == 1:
            partition.log.active.truncate(0, 0)
        original(self)

    monkeypatch.setattr(IndexRebuild, "read", read)
    with pytest.raises(IndexRebuilding) as raised:
        base_offset_at(partition, 30)
    await raised.value.rebuilt()
    assert reads == 2


async def test_stop_does_not_wait_for_a_rebuild(run: Run) -> None:
    with pytest.raises(IndexRebuilding):
        base_offset_at(run.partitions.get("t", 0), 30)
    await run.partitions.close()
    assert run.log_dir.is_closed_cleanly


async def test_failed_rebuild_is_an_error_of_the_operation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: IndexRebuild) -> None:
        raise OSError("the disk is away")

    monkeypatch.setattr(IndexRebuild, "read", fail)
    with suppress(IndexRebuilding):
        base_offset_at(run.partitions.get("t", 0), 30)
    with pytest.raises(OSError, match="away"):
        await run.partitions.truncate(run.partitions.get("t", 0), 30)
