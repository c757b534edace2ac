"""A partition promises only what is on disk, tells everyone who waits, and ends loudly when the disk does."""

import errno
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.model.errors import (
    DiskFull,
    ErrorCode,
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    RequestError,
    RequestTimedOut,
    StorageError,
    UnknownLeaderEpoch,
    UnknownTopic,
)
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.segment.log_segment import LogSegment
from headrace.testing import SimFiles
from tests.unit.broker.partition_kit import CONFIG, CommitByHand, Waiter, new_partition, produce, state, values_of


@pytest.fixture
def files() -> Iterator[SimFiles]:
    with SimFiles() as disk:
        disk.make_dir("/data")
        yield disk


@pytest.fixture
def commit() -> CommitByHand:
    return CommitByHand()


# What counts


def test_a_batch_counts_once_it_is_on_disk(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit)
    waiter = Waiter()
    result = produce(partition, "a", "b")
    assert not result.committed
    partition.wait_for_commit(result.next_offset, waiter)
    assert (partition.high_watermark, partition.log_end_offset, waiter.commits) == (0, 2, 0)
    assert partition.read(0, 1_000, read_committed=False) is None, "nobody sees what a power cut could take back"
    commit.run()
    assert (partition.high_watermark, waiter.commits) == (2, 1)
    assert values_of(partition) == ["a", "b"]


def test_one_sync_commits_everything_that_was_written_before_it(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit)
    waiters = [Waiter() for _ in range(20)]
    for number, waiter in enumerate(waiters):
        partition.wait_for_commit(produce(partition, f"value {number}").next_offset, waiter)
    commit.run()
    assert [waiter.commits for waiter in waiters] == [1] * 20
    assert len(partition.log.segments) > 1, "over segments, too"


def test_with_the_replicated_policy_a_batch_counts_at_once_and_gets_to_disk_in_the_background(
    files: SimFiles, commit: CommitByHand
) -> None:
    partition = new_partition(files, commit, config=replace(CONFIG, flush_policy="replicated"))
    assert produce(partition, "a").committed
    assert partition.high_watermark == 1
    assert not commit.dirty
    partition.request_flush()
    commit.run()
    assert partition.log.recovery_point == 1


def test_acknowledged_records_are_written_again_after_a_failed_sync(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit, config=replace(CONFIG, flush_policy="replicated"))
    produce(partition, "a")
    active = partition.log.active
    written = active.file.read(0, active.size)
    for directory in ("/", "/data", "/data/t-0"):
        files.sync_dir(directory)
    partition.request_flush()
    files.fail("sync", path="*.log")
    commit.run()
    assert partition.failure is not None
    active.file.sync()  # as the next start does after kill -9
    files.lose_power()
    assert files.read(active.path) == written


def test_in_memory_a_batch_counts_at_once() -> None:
    partition = new_partition(MemoryFiles(), None)
    assert produce(partition, "a").committed
    assert values_of(partition) == ["a"]


def test_a_late_sync_never_takes_the_watermark_back(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit, config=replace(CONFIG, flush_policy="replicated"))
    produce(partition, "a")
    partition.request_flush()
    produce(partition, "b")
    partition.synced(1)
    assert partition.high_watermark == 2


def test_who_waits_is_told_although_the_policy_changes_meanwhile(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit)
    waiter = Waiter()
    partition.wait_for_commit(produce(partition, "a").next_offset, waiter)
    partition.log.config = replace(CONFIG, flush_policy="replicated")
    commit.run()
    assert (partition.high_watermark, waiter.commits) == (1, 1)


def test_parked_fetches_are_woken_by_the_watermark(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit)
    fetch = Waiter()
    partition.waiters.fetches[fetch] = None
    produce(partition, "a")
    assert fetch.woken == 0
    commit.run()
    assert fetch.woken == 1


def test_a_repeated_batch_waits_for_the_commit_of_the_first(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit)
    fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    first = produce(partition, "a", **fields)
    again = produce(partition, "a", **fields)
    assert (again.base_offset, again.committed) == (first.base_offset, False)
    commit.run()
    assert produce(partition, "a", **fields).committed


# Who may


def test_rule_16_a_partition_led_elsewhere_says_so() -> None:
    partition = new_partition(MemoryFiles(), None)
    partition.follow(state(leader=2))
    with pytest.raises(NotLeader):
        produce(partition, "a")


@pytest.mark.parametrize(("epoch", "error"), [(4, FencedLeaderEpoch), (6, UnknownLeaderEpoch)])
def test_rule_17_another_leader_epoch_than_ours_is_refused(epoch: int, error: type[Exception]) -> None:
    partition = new_partition(MemoryFiles(), None)
    partition.follow(state(leader_epoch=5))
    partition.check_leader(5)
    partition.check_leader(-1)
    with pytest.raises(error):
        partition.check_leader(epoch)


def test_too_few_in_sync_replicas_refuse_acks_all_and_nothing_else() -> None:
    partition = new_partition(MemoryFiles(), None, config=replace(CONFIG, min_insync_replicas=2))
    with pytest.raises(NotEnoughReplicas):
        produce(partition, "a")
    assert partition.log_end_offset == 0
    assert produce(partition, "a", acks=1).base_offset == 0


# Failures


def test_d6_a_failed_sync_takes_the_partition_offline_and_acknowledges_nothing(
    files: SimFiles, commit: CommitByHand, caplog: pytest.LogCaptureFixture
) -> None:
    partition = new_partition(files, commit)
    produce(partition, "kept")
    commit.run()
    waiter, fetch = Waiter(), Waiter()
    partition.wait_for_commit(produce(partition, "lost").next_offset, waiter)
    partition.waiters.fetches[fetch] = None
    files.fail("sync", path="*.log")
    commit.run()
    assert (waiter.commits, [error.code for error in waiter.failures]) == (0, [ErrorCode.KAFKA_STORAGE_ERROR])
    assert (partition.high_watermark, fetch.woken) == (1, 1)
    assert "offline" in caplog.text
    with pytest.raises(StorageError):
        produce(partition, "more")
    with pytest.raises(StorageError):
        partition.check_leader()


def test_d6_a_sync_that_succeeds_after_one_that_failed_proves_nothing(files: SimFiles, commit: CommitByHand) -> None:
    """The kernel marks pages that it could not write as clean: the next sync finds nothing to complain of."""
    partition = new_partition(files, commit)
    produce(partition, "lost")
    partition.log.unsynced()
    file = partition.log.active.file
    produce(partition, "also lost")
    _, later_offset = partition.log.unsynced()
    files.fail("sync", path="*.log")
    with pytest.raises(StorageError) as failed:
        file.sync()
    file.sync()
    partition.sync_failed(failed.value)
    partition.synced(later_offset)
    assert (partition.high_watermark, partition.log.recovery_point) == (0, 0)


def test_d6_a_write_error_takes_the_partition_offline(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit)
    produce(partition, "kept")
    files.fail("append", path="*.log", error=errno.EIO)
    with pytest.raises(StorageError):
        produce(partition, "refused")
    with pytest.raises(StorageError):
        produce(partition, "refused too, although the disk works again")
    assert partition.log_end_offset == 1


def test_d7_a_full_disk_refuses_and_heals(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit)
    produce(partition, "before")
    commit.run()
    files.capacity_bytes = files._disk.used_bytes() + 10
    for _ in range(3):
        with pytest.raises(DiskFull):
            produce(partition, "refused")
    assert values_of(partition) == ["before"], "reading goes on"
    files.capacity_bytes = None
    assert produce(partition, "after").base_offset == 1
    commit.run()
    assert values_of(partition) == ["before", "after"]


@pytest.mark.parametrize("nth", range(1, 12))
def test_d7_a_disk_that_is_full_in_the_middle_of_a_roll_refuses_and_heals(
    files: SimFiles, commit: CommitByHand, nth: int
) -> None:
    """Every write that a batch can cause finds no room once; no offset is given twice, nothing is lost."""
    partition = new_partition(files, commit)
    written: list[str] = []
    refused = 0
    files.fail("append", nth=nth, error=errno.ENOSPC)
    for number in range(30):
        partition.follow(state(leader_epoch=number // 10))
        value = f"value {number}"
        try:
            result = produce(partition, value)
        except DiskFull:
            refused += 1
            result = produce(partition, value)
        assert result.base_offset == number
        written.append(value)
        commit.run()
    assert refused == 1
    assert values_of(partition) == written
    assert [entry[1] for entry in partition.log.epochs.entries()] == [0, 10, 20]


def test_waiters_of_a_deleted_topic_are_told_that_it_is_gone(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit)
    waiter = Waiter()
    partition.wait_for_commit(produce(partition, "a").next_offset, waiter)
    partition.retire()
    assert [type(error) for error in waiter.failures] == [UnknownTopic]


def test_waiters_of_a_replica_that_moves_away_are_told_to_look_elsewhere(files: SimFiles, commit: CommitByHand) -> None:
    partition = new_partition(files, commit)
    waiter = Waiter()
    partition.wait_for_commit(produce(partition, "a").next_offset, waiter)
    partition.retire(moved=True)
    assert [type(error) for error in waiter.failures] == [NotLeader]


# Deleting records


def test_records_below_the_new_start_are_gone_and_whole_segments_are_let_go(
    files: SimFiles, commit: CommitByHand
) -> None:
    gone: list[LogSegment] = []
    partition = new_partition(files, commit, let_go=gone)
    for number in range(40):
        produce(partition, f"value {number}")
    commit.run()
    assert partition.delete_records(25) == 25
    assert gone
    assert all(segment.next_offset <= 25 for segment in gone)
    with pytest.raises(OffsetOutOfRange):
        partition.read(24, 1_000, read_committed=False)
    assert values_of(partition, 25)[0] == "value 25"
    assert partition.delete_records(-1) == 40
    assert partition.delete_records(10) == 40, "a start never moves back"


@pytest.mark.parametrize(("before", "error"), [(-2, OffsetOutOfRange), (3, RequestTimedOut), (100, OffsetOutOfRange)])
def test_records_that_are_not_committed_cannot_be_deleted(
    files: SimFiles, commit: CommitByHand, before: int, error: type[RequestError]
) -> None:
    partition = new_partition(files, commit)
    produce(partition, "a", "b")
    commit.run()
    produce(partition, "c")
    with pytest.raises(error):
        partition.delete_records(before)


async def test_settled_waits_for_what_is_written_now(files: SimFiles, commit: CommitByHand) -> None:
    import asyncio

    partition = new_partition(files, commit)
    await partition.settled()
    produce(partition, "a")
    waiting = asyncio.create_task(partition.settled())
    await asyncio.sleep(0)
    assert not waiting.done()
    commit.run()
    await waiting


def test_the_log_says_what_happened(files: SimFiles, commit: CommitByHand, caplog: pytest.LogCaptureFixture) -> None:
    partition = new_partition(files, commit)
    with caplog.at_level(logging.CRITICAL):
        partition.go_offline(StorageError("the disk is on fire"))
        partition.go_offline(StorageError("still on fire"))
    assert [record.getMessage() for record in caplog.records] == ["t-0 goes offline: the disk is on fire"]
