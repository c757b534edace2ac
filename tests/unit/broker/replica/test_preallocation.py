"""Logs preallocate no space that belongs to the disk reserve, and give it back while the disk is short of space."""

import errno
from collections.abc import AsyncIterator

import pytest

from headrace.broker.replica.partition import Partition
from headrace.broker.server import Broker
from headrace.core.controller.topic_control import NewTopic
from headrace.model.errors import DiskFull
from headrace.storage.io.preallocation import PREALLOCATED_BYTES, ROUNDS_MIN
from headrace.testing import SimFiles
from tests.unit.broker.partition_kit import produce
from tests.unit.broker.start_kit import Machine

DISK_BYTES = 20 * PREALLOCATED_BYTES  # a tenth of it is the reserve


@pytest.fixture
async def files() -> AsyncIterator[SimFiles]:
    with SimFiles() as disk:
        disk.capacity_bytes = DISK_BYTES
        yield disk


def preallocated(partition: Partition) -> int:
    return max(0, partition.log.active.file.preallocated_end - partition.log.active.size)


def append(partition: Partition) -> None:
    produce(partition, f"value {partition.log_end_offset}")
    work, end = partition.log.take_unflushed()
    for item in work:
        item.sync()
    partition.log.synced(end)


async def started(files: SimFiles) -> tuple[Broker, Partition]:
    broker = await Machine(files).started()
    await broker.controller.create_topics([NewTopic("t", 1, 1)])
    return broker, broker.partitions.get("t", 0)


async def sync_often(files: SimFiles) -> tuple[Broker, Partition]:
    broker, partition = await started(files)
    for _ in range(ROUNDS_MIN):
        append(partition)
    return broker, partition


async def test_log_of_a_broker_preallocates_while_there_is_space(files: SimFiles) -> None:
    broker, partition = await sync_often(files)
    assert preallocated(partition) > 0
    await broker.stop()


async def test_log_of_a_broker_asks_the_reserve_before_it_preallocates(files: SimFiles) -> None:
    broker, partition = await started(files)
    files.capacity_bytes = (
        DISK_BYTES - files.free_bytes("/data") + broker.reserve.reserve_bytes + PREALLOCATED_BYTES // 4
    )
    broker.reserve.check(broker.reserve.reserve_bytes)  # has a look at the disk
    for _ in range(2 * ROUNDS_MIN):
        append(partition)
    assert preallocated(partition) == 0
    await broker.stop()


async def test_short_disk_gets_preallocated_space_back(files: SimFiles) -> None:
    broker, partition = await sync_often(files)
    before = preallocated(partition)
    used = DISK_BYTES - files.free_bytes("/data")
    files.capacity_bytes = used + broker.reserve.reserve_bytes - before // 2
    await broker._housekeeper._give_back_room()
    assert preallocated(partition) == 0
    broker.check_free_space(1_000)
    append(partition)
    assert not broker.partitions.failure_of("t", 0)
    await broker.stop()


async def test_disk_with_enough_space_leaves_preallocated_space(files: SimFiles) -> None:
    broker, partition = await sync_often(files)
    before = preallocated(partition)
    await broker._housekeeper._give_back_room()
    assert preallocated(partition) == before > 0
    await broker.stop()


@pytest.mark.parametrize(("error", "is_offline"), [(errno.EIO, True), (errno.ENOSPC, False)])
async def test_failed_return_of_space_is_a_failure_of_its_partition_only(
    files: SimFiles, error: int, is_offline: bool
) -> None:
    broker, partition = await sync_often(files)
    files.capacity_bytes = 0
    files.fail("truncate", path=partition.log.active.path, error=error)
    await broker._housekeeper._give_back_room()
    assert (partition.failure is not None) is is_offline
    with pytest.raises(DiskFull):
        broker.check_free_space(DISK_BYTES)
    files.capacity_bytes = DISK_BYTES
    await broker.stop()
