"""What runs on the event loop syncs nothing itself: the log's next sync does, in an order that survives a crash."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from headrace.records.batch import parse_header
from headrace.records.control import ControlType
from headrace.storage.log import Log
from headrace.storage.log_append import append_batches_as_follower
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.log_truncation import Truncation, restart_log_at, truncate_log
from headrace.storage.producer.producer_snapshot_file import snapshot_offsets
from headrace.testing import PowerLost, SimFiles
from tests.unit.storage.log_kit import CONFIG, append, batch_of, new_log, read_values
from tests.unit.storage.test_log_transactions import aborted_from, end, write

FOLDER = "/data/t-0"
SMALL = replace(CONFIG, segment_bytes=300)


@pytest.fixture
def files() -> Iterator[SimFiles]:
    with SimFiles() as disk:
        disk.make_dir(FOLDER)
        disk.sync_dir("/")
        disk.sync_dir("/data")
        disk.operations.clear()
        yield disk


def synced(log: Log) -> None:
    """One group commit."""
    work, offset = log.unsynced()
    for item in work:
        item.sync()
    log.synced(offset)


def syncs(files: SimFiles) -> list[tuple[str, str]]:
    return [one for one in files.operations if one[0] in ("sync", "sync_dir")]


def reopened(files: SimFiles, recovery_point: int = 0) -> Log:
    """After a power loss."""
    checkpoint = Checkpoint(recovery_point=recovery_point, same_boot_as_last_run=False)
    return open_log(files, FOLDER, SMALL, checkpoint, now_ms=0)


# Leader epochs


def test_new_leader_epoch_is_appended_without_a_sync(files: SimFiles) -> None:
    log = new_log(files)
    append(log, "a", epoch=1)
    append(log, "b", epoch=2)
    assert syncs(files) == []


def test_new_leader_epoch_is_copied_without_a_sync(files: SimFiles) -> None:
    log = new_log(files)
    batch = memoryview(bytearray(batch_of(["a"])))
    append_batches_as_follower(log, batch, [parse_header(batch)._replace(leader_epoch=3)], 0)
    assert (log.epochs.latest, syncs(files)) == (3, [])


def test_leader_epoch_is_durable_with_its_batch(files: SimFiles) -> None:
    log = new_log(files)
    append(log, "a", epoch=1)
    append(log, "b", epoch=4)
    synced(log)
    files.lose_power()
    again = reopened(files)
    assert (again.epochs.entries(), read_values(again)) == ([(1, 0), (4, 1)], ["a", "b"])


def test_leader_epoch_is_synced_before_its_batch(files: SimFiles) -> None:
    log = new_log(files)
    append(log, "a", epoch=1)
    paths = [path.rpartition("/")[2] for _, path in _synced_paths(files, log)]
    assert paths.index("leader-epoch-checkpoint") < paths.index(f"{0:020d}.log")


def _synced_paths(files: SimFiles, log: Log) -> list[tuple[str, str]]:
    before = len(files.operations)
    synced(log)
    return [one for one in files.operations[before:] if one[0] in ("sync", "sync_dir")]


@pytest.mark.parametrize("batches", [1, 2])
def test_batch_that_is_on_disk_before_its_epoch_stays_valid(files: SimFiles, batches: int) -> None:
    log = new_log(files, SMALL)
    append(log, "a", epoch=1)
    synced(log)
    for number in range(batches):
        append(log, f"b{number}", epoch=2)
    log.active.file.sync()  # the kernel writes what it likes first
    files.lose_power()
    values = ["a", *(f"b{number}" for number in range(batches))]
    for epoch in (3, 4):  # later epochs do not make it look corrupt
        log = reopened(files, recovery_point=1)
        assert log.epochs.entries()[:2] == [(1, 0), (2, 1)]
        append(log, f"c{epoch}", epoch=epoch)
        values.append(f"c{epoch}")
        synced(log)
        files.lose_power()
    assert read_values(reopened(files, recovery_point=1)) == values


# Aborted transactions


def with_aborted(files: SimFiles) -> Log:
    """A log that rolled behind an aborted transaction, and has not been synced since."""
    log = new_log(files, SMALL)
    write(log, 7, "a")
    end(log, 7, ControlType.ABORT)
    log.roll(0)
    return log


def test_roll_with_an_aborted_transaction_syncs_nothing(files: SimFiles) -> None:
    log = with_aborted(files)
    assert (len(log.segments), syncs(files)) == (2, [])


def test_snapshot_is_written_after_the_txn_index_is_durable(files: SimFiles) -> None:
    log = with_aborted(files)
    assert snapshot_offsets(files, FOLDER) == []
    synced(log)
    assert snapshot_offsets(files, FOLDER) == [2]
    files.lose_power()
    assert aborted_after_power_loss(files) == [(7, 0, 1)]


def test_roll_after_the_sync_began_keeps_its_snapshot_waiting(files: SimFiles) -> None:
    log = new_log(files, SMALL)
    write(log, 7, "a")
    end(log, 7, ControlType.ABORT)
    work, offset = log.unsynced()
    log.roll(0)
    for item in work:
        item.sync()
    log.synced(offset)
    assert snapshot_offsets(files, FOLDER) == []
    synced(log)
    assert snapshot_offsets(files, FOLDER) == [2]


@pytest.mark.parametrize("nth", range(1, 12))
def test_no_aborted_transaction_is_lost_at_any_point_of_the_sync(files: SimFiles, nth: int) -> None:
    log = new_log(files, SMALL)
    write(log, 7, "a")
    synced(log)
    end(log, 7, ControlType.ABORT)
    synced(log)
    log.roll(0)
    append(log, "b")
    files.lose_power_before(nth)
    with suppress(PowerLost):
        synced(log)
    files.heal()
    files.lose_power()
    assert aborted_after_power_loss(files) == [(7, 0, 1)]


def test_snapshot_of_truncated_records_is_not_written(files: SimFiles) -> None:
    log = with_aborted(files)
    append(log, "b")
    work, offset = log.unsynced()
    truncate_log(log, 1, now_ms=0)
    for item in work:
        item.sync()
    log.synced(offset)
    append(log, "c")
    synced(log)
    assert [one for one in snapshot_offsets(files, FOLDER) if one > 1] == []


def aborted_after_power_loss(files: SimFiles) -> list[tuple[int, int, int]]:
    """Producer, first and last offset."""
    log = reopened(files)
    log.producers.high_watermark_advanced(log.log_end_offset)
    return [(one.producer_id, one.first_offset, one.last_offset) for one in aborted_from(log, 0)]


# Truncation


def filled(files: SimFiles) -> Log:
    log = new_log(files, SMALL)
    for number in range(12):
        append(log, f"value {number}")
    synced(log)
    files.operations.clear()
    return log


@pytest.mark.parametrize("end_offset", [0, 1, 4, 7, 11])
def test_truncation_syncs_nothing(files: SimFiles, end_offset: int) -> None:
    log = filled(files)
    truncate_log(log, end_offset, now_ms=0)
    assert (log.log_end_offset, syncs(files)) == (end_offset, [])


def damage_txn_index(files: SimFiles, path: str) -> None:
    files.open(path, create=True).append(b"torn")


def lose_txn_index(files: SimFiles, path: str) -> None:
    if files.exists(path):
        files.remove(path)


@pytest.mark.parametrize("change", [damage_txn_index, lose_txn_index])
@pytest.mark.parametrize("end_offset", [3, 6])
def test_truncation_that_rewrites_an_index_syncs_only_in_its_replay(
    files: SimFiles, change: Callable[[SimFiles, str], None], end_offset: int
) -> None:
    log = new_log(files)
    for number in range(3):
        write(log, 7, f"value {number}", sequence=number)
        end(log, 7, ControlType.ABORT)
    append(log, "d")
    synced(log)
    log.active.aborted.close()
    change(files, log.active.path.replace(".log", ".txnindex"))
    step = Truncation(log, end_offset)
    step.replay()
    assert step.fits()
    files.operations.clear()
    step.apply(0)
    assert (log.log_end_offset, syncs(files)) == (end_offset, [])
    assert [one.last_offset for one in log.active.aborted.entries_from(0)] == [1, 3, 5][: end_offset // 2]
    synced(log)
    files.lose_power()
    again = open_log(files, FOLDER, CONFIG, Checkpoint(same_boot_as_last_run=False), now_ms=0)
    assert [one.last_offset for one in again.active.aborted.entries_from(0)] == [1, 3, 5][: end_offset // 2]


def test_restart_at_another_offset_syncs_nothing(files: SimFiles) -> None:
    log = filled(files)
    restart_log_at(log, 50, now_ms=0)
    assert (log.log_start_offset, log.log_end_offset, syncs(files)) == (50, 50, [])


@pytest.mark.parametrize(("segment", "behind", "steps"), [(1, 1, 2), (1, 0, 2), (-1, 1, 1), (0, 0, 1)])
def test_whole_segments_go_before_the_last_one_is_cut(files: SimFiles, segment: int, behind: int, steps: int) -> None:
    log = filled(files)
    bases = [one.base_offset for one in log.segments]
    end_offset = bases[segment] + behind
    assert steps_of(log, end_offset) == [bases[2], end_offset][-steps:]


def steps_of(log: Log, end_offset: int) -> list[int]:
    """Where the log ends after each step."""
    ends, is_last = [], False
    while not is_last:
        step = Truncation(log, end_offset)
        step.replay()
        step.apply(0)
        ends.append(log.log_end_offset)
        is_last = step.is_last
    return ends


def test_truncated_log_is_durable_with_the_next_sync(files: SimFiles) -> None:
    log = filled(files)
    truncate_log(log, 4, now_ms=0)
    append(log, "other", epoch=1)
    synced(log)
    files.lose_power()
    assert read_values(reopened(files)) == [*(f"value {number}" for number in range(4)), "other"]
