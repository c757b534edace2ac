"""Producer snapshots that a power loss or corruption took, and retention that removes the batches they described."""

import pytest

from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.producer.producer_snapshot_file import snapshot_offsets, snapshot_path
from headrace.storage.segment.segment_replacement import remove_segment_files
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, new_log
from tests.unit.storage.test_log_transactions import ABORT, COMMIT, end, write

DIRECTORY = "/data/t-0"
PRODUCER = {"producer_id": 1, "producer_epoch": 0}


def empty_log(files: SimFiles) -> Log:
    files.make_dir(DIRECTORY)
    files.sync_dir("/")
    files.sync_dir("/data")
    return new_log(files)


def sync(log: Log) -> None:
    work, offset = log.unsynced()
    for item in work:
        item.sync()
    log.synced(offset)


def reopen(files: SimFiles, log: Log, *, same_boot_as_last_run: bool = True) -> Log:
    checkpoint = Checkpoint(
        recovery_point=log.recovery_point,
        log_start_offset=log.log_start_offset,
        same_boot_as_last_run=same_boot_as_last_run,
    )
    return open_log(files, DIRECTORY, CONFIG, checkpoint, now_ms=0)


def remove_below(log: Log, offset: int) -> None:
    for segment in log.advance_log_start(offset):
        remove_segment_files(log.files, segment)
    log.files.sync_dir(DIRECTORY)


@pytest.mark.parametrize("kind", [None, COMMIT, ABORT])
def test_snapshot_of_a_roll_is_durable_with_the_next_syncs(kind: object) -> None:
    with SimFiles() as files:
        log = empty_log(files)
        append(log, "a", "b", base_sequence=0, **PRODUCER)
        if kind is not None:
            write(log, 7, "in a transaction", sequence=0)
            end(log, 7, kind)  # the snapshot waits for the index of aborted transactions
        log.roll(0)
        rolled_at = log.log_end_offset
        append(log, "without a producer")
        sync(log)
        append(log, "without a producer")
        sync(log)
        remove_below(log, rolled_at)
        files.lose_power()
        again = reopen(files, log, same_boot_as_last_run=False)
        known = again.producers.get(1)
        assert known is not None
        assert known.next_sequence == 2


@pytest.mark.parametrize("kind", [None, COMMIT, ABORT])
def test_name_of_a_snapshot_is_durable_with_the_next_syncs(kind: object) -> None:
    """Without another roll, whose sync includes the directory."""
    with SimFiles() as files:
        log = empty_log(files)
        append(log, "a", "b", base_sequence=0, **PRODUCER)
        if kind is not None:
            write(log, 7, "in a transaction", sequence=0)
            end(log, 7, kind)
        log.roll(0)
        rolled_at = log.log_end_offset
        for _ in range(2):
            append(log, "without a producer")
            sync(log)
        files.lose_power()
        assert snapshot_offsets(files, DIRECTORY) == [rolled_at]


@pytest.mark.parametrize("operation", ["open", "sync"])
def test_snapshot_that_cannot_be_synced_fails_no_append(operation: str) -> None:
    with SimFiles() as files:
        log = empty_log(files)
        append(log, "a", base_sequence=0, **PRODUCER)
        log.roll(0)
        append(log, "b", base_sequence=1, **PRODUCER)
        files.fail(operation, path="*.snapshot")
        sync(log)
        assert log.recovery_point == 2


@pytest.mark.parametrize("missing", [[0], [1], [0, 1]])
def test_start_writes_lost_snapshots_again(missing: list[int]) -> None:
    with SimFiles() as files:
        log = empty_log(files)
        for sequence in range(2):
            append(log, "x", base_sequence=sequence, **PRODUCER)
            write(log, 7, "x", sequence=sequence)
            end(log, 7, ABORT)
            log.roll(0)
        append(log, "without a producer")
        for _ in range(2):
            sync(log)
            append(log, "without a producer")
        before = snapshot_offsets(files, DIRECTORY)
        assert before == [3, 6]
        for number in missing:
            files.remove(snapshot_path(DIRECTORY, before[number]))
        log = reopen(files, log)
        assert 6 in snapshot_offsets(files, DIRECTORY)
        sync(log)
        remove_below(log, 6)
        again = reopen(files, log)
        known = again.producers.get(1)
        assert known is not None
        assert known.next_sequence == 2


def test_start_writes_few_snapshots() -> None:
    with SimFiles() as files:
        log = empty_log(files)
        for sequence in range(6):
            append(log, "x", base_sequence=sequence, **PRODUCER)
            log.roll(0)
        sync(log)
        for offset in snapshot_offsets(files, DIRECTORY):
            files.remove(snapshot_path(DIRECTORY, offset))
        reopen(files, log)
        assert snapshot_offsets(files, DIRECTORY) == [5, 6]
