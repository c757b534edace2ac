"""Leaders and followers whose logs are empty, but do not begin at offset 0."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from headrace.broker.replica.partition import Partition
from headrace.broker.replication.replica_fetcher import PartitionFetchState, ReplicaFetcher
from headrace.core.image.model import PartitionRegistration
from headrace.core.replica.follower_truncation import EpochEndOffset, truncation
from headrace.model.errors import ErrorCode
from headrace.model.ids import NO_EPOCH
from headrace.protocol.messages.replica_fetch import FetchedPartition
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.log_truncation import truncate_log
from headrace.testing.simulation.files import SimFiles
from tests.unit.broker.partition_kit import new_partition, produce
from tests.unit.storage.log_kit import CONFIG, append, new_log

FOLLOWER, BROKER_EPOCH = 2, 44
ALONE = PartitionRegistration(replicas=(1, 2), isr=(1,), leader=1, leader_epoch=0, partition_epoch=1)


def leader(state: PartitionRegistration = ALONE) -> Partition:
    """Leads with five records of an earlier epoch, and five of its own."""
    partition = new_partition(SimFiles(), None)
    for epoch in (1, 2):
        partition.follow(state._replace(leader_epoch=partition.leader_epoch + epoch, partition_epoch=epoch))
        for number in range(5):
            produce(partition, f"{epoch}-{number}")
    assert partition.log_end_offset == 10
    return partition


def fetch(partition: Partition, offset: int, log_start: int) -> EpochEndOffset | None:
    """A follower's fetch with an empty log, or of an unknown epoch."""
    partition.update_follower_fetch_state(FOLLOWER, BROKER_EPOCH, offset, NO_EPOCH, 0, log_start)
    return partition.divergence_of(FOLLOWER, offset, NO_EPOCH, log_start)


def joins(partition: Partition) -> bool:
    assert partition.leadership is not None
    proposed = partition.leadership.proposal(10, partition.high_watermark, 1, 0, 1000, lambda *_: True)
    return proposed is not None and FOLLOWER in proposed.isr


@pytest.mark.parametrize("start", [1, 4, 7, 10, 15], ids=lambda start: f"begins at {start}")
def test_empty_follower_past_the_leaders_start_starts_over(start: int) -> None:
    """Whether or not the leader has reached that offset meanwhile."""
    partition = leader()
    diverging = fetch(partition, start, start)
    assert diverging == EpochEndOffset(NO_EPOCH, 0)
    assert truncation(new_partition(SimFiles(), None).log.epochs, start, diverging) == 0
    assert not joins(partition)
    assert fetch(partition, 0, 0) is None


def test_empty_follower_of_an_emptied_leader_joins() -> None:
    partition = leader()
    partition.move_log_start(10)
    assert fetch(partition, 10, 10) is None
    assert joins(partition)


@pytest.mark.parametrize("state", [ALONE._replace(isr=(1, 2)), ALONE._replace(elr=(2,))], ids=["ISR", "ELR"])
def test_empty_follower_that_holds_what_is_committed_goes_on(state: PartitionRegistration) -> None:
    """Retention has emptied its log earlier than the leader's. It may lead before it had copied the leader's again."""
    assert fetch(leader(state), 10, 10) is None


def test_follower_with_records_is_not_taken_for_an_empty_one() -> None:
    assert fetch(leader(), 10, 5) is None


@pytest.mark.parametrize("restarts", [1, 2, 3])
def test_emptied_log_restarts_without_an_error(restarts: int, caplog: pytest.LogCaptureFixture) -> None:
    """The second restart finds an epoch file without rows beside batches that are deleted, but still in the segment."""
    files = MemoryFiles()
    log = new_log(files)
    for epoch in (1, 2):
        append(log, "a", "b", epoch=epoch)
    log.advance_log_start(4)
    for _ in range(restarts):
        log.epochs.flush()
        log.close()
        log = open_log(files, "/data/t-0", CONFIG, Checkpoint(recovery_point=0, log_start_offset=4), now_ms=0)
    assert (log.log_start_offset, log.log_end_offset) == (4, 4)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(("end", "pauses"), [(3, True), (2, False)], ids=["nothing", "a record"])
async def test_fetcher_pauses_after_a_truncation_that_removed_nothing(end: int, pauses: bool) -> None:
    partition = leader()
    partition.follow(ALONE._replace(isr=(2,), leader=2, leader_epoch=9, partition_epoch=9))
    await truncate(partition, 3)
    fetcher = object.__new__(ReplicaFetcher)
    fetcher._leader, fetcher._loop = 2, asyncio.get_running_loop()
    fetcher._broker = SimpleNamespace(partitions=SimpleNamespace(truncate=truncate))  # type: ignore[assignment]
    followed = PartitionFetchState(partition, 1000)
    row = FetchedPartition(partition.topic_id, 0, ErrorCode.NONE, 0, 0, (NO_EPOCH, end), memoryview(b""))
    await fetcher._take_row(followed, row)
    assert partition.log_end_offset == end
    assert (followed.pause_s > 0) is pauses


async def truncate(partition: Partition, end: int) -> bool:
    truncate_log(partition.log, end, 0)
    return True
