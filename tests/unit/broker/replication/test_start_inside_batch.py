"""A follower copies a log whose start offset lies inside a batch: DeleteRecords moved it there."""

from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random

import pytest

from headrace.broker.replica.partition import Partition
from headrace.broker.replication.follower_log import (
    Diverged,
    Expected,
    Unconfirmed,
    append_run,
    check_history,
    learn,
    make_place,
    verified_batches,
)
from headrace.model.errors import OffsetOutOfRange
from headrace.model.ids import NO_EPOCH
from headrace.records.batch import patch_offset_and_epoch, walk
from headrace.storage.log_read import read
from headrace.testing import SimFiles
from headrace.testing.simulation.files import PowerLost
from tests.unit.broker.replica.test_checkpoint_rows import checkpoint_all, followed
from tests.unit.broker.replica.test_replica_manager import Run
from tests.unit.storage.log_kit import batch_of

LOG_START = 5
HIGH_WATERMARK = 12
EPOCH = 3


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        yield disk


def leader_batches() -> memoryview:
    """Offsets 0 to 9 in one batch, 10 and 11 in another."""
    out = bytearray()
    for base_offset, count in ((0, 10), (10, 2)):
        batch = bytearray(batch_of([f"value {base_offset + one}" for one in range(count)]))
        patch_offset_and_epoch(memoryview(batch), base_offset, EPOCH)
        out += batch
    return memoryview(bytes(out))


def started(files: SimFiles) -> Run:
    run = Run(files, followed(leader_epoch=EPOCH))
    for name in ("in_background", "remove_in_background"):
        setattr(run.partitions.removals, name, lambda work, *arguments: work(*arguments))
    return run


async def copy(run: Run) -> Partition:
    """As the fetcher does: it fetches at the log end, or begins at the log start of the leader if that is higher."""
    partition = run.partitions.get("t", 0)
    if partition.log_end_offset < LOG_START:
        assert await run.partitions.truncate_fully_and_start_at(partition, LOG_START)
    end, held = partition.log_end_offset, partition.log.epochs.latest
    start = next((at for at, header in walk(leader_batches()) if header.next_offset > end), None)
    records = leader_batches()[start:] if start is not None else memoryview(b"")
    for append in verified_batches(records, Expected(end, held, EPOCH, is_confirmed=True)) if records else ():
        assert await make_place(run.partitions, partition, append.headers[0])
        append_run(partition, append, 1_000)
    run.commit.run()
    learn(partition, HIGH_WATERMARK, LOG_START)
    return partition


def assert_is_copied(partition: Partition) -> None:
    assert (partition.log_start_offset, partition.log_end_offset) == (LOG_START, HIGH_WATERMARK)
    assert partition.high_watermark == HIGH_WATERMARK
    assert partition.log.epochs.latest == EPOCH
    assert partition.log.active.base_offset == 0
    found = read(partition.log, LOG_START, 10_000, HIGH_WATERMARK)
    assert found is not None
    assert bytes(found.read()) == bytes(leader_batches())
    assert not partition.log.holes


async def test_empty_log_begins_at_batch_around_log_start(files: SimFiles) -> None:
    assert_is_copied(await copy(started(files)))


async def test_log_below_log_start_is_replaced(files: SimFiles) -> None:
    run = started(files)
    partition = run.partitions.get("t", 0)
    batch = bytearray(batch_of(["stale"]))
    patch_offset_and_epoch(memoryview(batch), 0, 0)
    for append in verified_batches(memoryview(bytes(batch)), Expected(0, NO_EPOCH, EPOCH)):
        append_run(partition, append, 1_000)
    run.commit.run()
    assert_is_copied(await copy(run))


@pytest.mark.parametrize("loss", ["stop", "kill", "power"])
async def test_log_start_inside_batch_survives_restart(files: SimFiles, loss: str) -> None:
    run = started(files)
    await copy(run)
    checkpoint_all(run)
    if loss == "stop":
        await run.partitions.close()
    elif loss == "power":
        files.lose_power()
    assert_is_copied(started(files).partitions.get("t", 0))


async def test_batch_below_log_with_records_is_rejected(files: SimFiles) -> None:
    """Two logs with different batches have diverged: nothing is discarded for that."""
    run = started(files)
    partition = await copy(run)
    batch = bytearray(batch_of([f"other {one}" for one in range(4)]))
    patch_offset_and_epoch(memoryview(batch), 10, EPOCH)
    expected = Expected(partition.log_end_offset, EPOCH, EPOCH)
    with pytest.raises(Unconfirmed):
        next(verified_batches(memoryview(bytes(batch)), expected))
    (append,) = verified_batches(memoryview(bytes(batch)), expected._replace(is_confirmed=True))
    assert await make_place(run.partitions, partition, append.headers[0])
    with pytest.raises(Diverged):
        check_history(partition, append.headers[0])
    with pytest.raises(OffsetOutOfRange):
        append_run(partition, append, 1_000)
    assert_is_copied(partition)


@pytest.mark.parametrize("loss", ["process crash", "power loss", "torn power loss"])
async def test_crash_anywhere_in_copy_is_recovered_from(loss: str) -> None:
    with SimFiles() as disk:
        run = started(disk)
        disk.operations.clear()
        await copy(run)
        count = len(disk.operations)
    assert count > 5
    for at in range(1, count + 1):
        with SimFiles() as disk:
            run = started(disk)
            disk.lose_power_before(at)
            with suppress(PowerLost):
                await copy(run)
            disk.heal()
            if loss != "process crash":
                disk.lose_power(Random(at) if loss == "torn power loss" else None)
            run = started(disk)
            partition = run.partitions.get("t", 0)
            # A crash may leave the partition without a segment; it is then copied again before it is electable.
            assert await run.partitions.truncate_corruption(partition)
            assert partition.log_end_offset in (0, LOG_START, 10, HIGH_WATERMARK), f"crash before operation {at}"
            assert_is_copied(await copy(run))
