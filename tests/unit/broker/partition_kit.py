"""A partition on a disk with faults to order, and a group commit that waits for the test."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from headrace.broker.replica.log_flusher import LogFlusher
from headrace.broker.replica.partition import AppendResult, Partition
from headrace.config.values import LogConfig
from headrace.core.image.metadata_image import PartitionRegistration
from headrace.model.errors import HeadraceError, StorageError
from headrace.storage.io.file_system import FileSystem
from headrace.storage.log import Log
from headrace.storage.segment.log_segment import LogSegment
from tests.unit.storage.log_kit import batch_of

ACKS_ALL = -1
CONFIG = replace(LogConfig(), segment_bytes=1_000, index_interval_bytes=100)


class CommitByHand:
    """Group commit without its thread: a round happens when the test says so."""

    def __init__(self) -> None:
        self.dirty: dict[Partition, None] = {}

    def request(self, partition: Partition) -> None:
        self.dirty[partition] = None

    def run(self) -> None:
        dirty, self.dirty = self.dirty, {}
        work = [(partition, *partition.log.take_unflushed()) for partition in dirty]
        for partition, files, offset in work:
            try:
                for file in files:
                    file.sync()
            except StorageError as error:
                partition.sync_failed(error)
            else:
                partition.synced(offset)


class Waiter:
    """A Produce with acks=all, or a parked Fetch: notes what it is told."""

    def __init__(self) -> None:
        self.commits = 0
        self.failures: list[HeadraceError] = []
        self.woken = 0

    def committed(self) -> None:
        self.commits += 1

    def failed(self, partition: Partition, error: HeadraceError) -> None:
        self.failures.append(error)

    def wake(self) -> None:
        self.woken += 1


def state(*, leader: int = 1, isr: tuple[int, ...] = (1,), leader_epoch: int = 0) -> PartitionRegistration:
    return PartitionRegistration(isr, isr, leader, leader_epoch, 0)


def new_partition(
    files: FileSystem,
    group_commit: LogFlusher | CommitByHand | None,
    *,
    config: LogConfig = CONFIG,
    index: int = 0,
    folder: str = "/data",
    let_go: list[LogSegment] | None = None,
) -> Partition:
    log = Log.create(files, f"{folder}/t-{index}", config, now_ms=0)
    gone = let_go if let_go is not None else []
    return Partition(
        "t",
        index,
        UUID(int=7),
        log,
        state(),
        node_id=1,
        group_commit=group_commit,  # type: ignore[arg-type]
        let_go=lambda _, segments, at_once: gone.extend(segments),
    )


def produce(
    partition: Partition, *values: str, acks: int = ACKS_ALL, now_ms: int = 1_000, **fields: int
) -> AppendResult:
    return partition.append(memoryview(bytearray(batch_of(values, **fields))), acks, now_ms)


async def produce_in_turns(partitions: Sequence[Partition], turns: int) -> None:
    """A batch to each of them in every turn of the loop, whether or not the one before is on disk."""
    for _ in range(turns):
        for partition in partitions:
            produce(partition, "a")
        await asyncio.sleep(0)


def values_of(partition: Partition, offset: int = 0) -> Sequence[str]:
    """What a consumer can see."""
    from tests.unit.storage.log_kit import read_values

    return read_values(partition.log, offset, limit=partition.high_watermark)
