"""A disk that fails while a transaction marker is appended: the marker and its index entry are written, or neither."""

import errno
from collections.abc import Callable

import pytest

from headrace.model.errors import DiskFull, StorageError
from headrace.records.batch import parse_header, patch_offset_and_epoch
from headrace.records.control import EndMarker, build_marker_batch
from headrace.storage.log import Log
from headrace.storage.log_append import append_copy
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.segment.transaction_index import AbortedTxn
from headrace.testing import PowerLost, SimFiles
from tests.unit.storage.log_kit import CONFIG, append, new_log
from tests.unit.storage.test_log_transactions import ABORT, aborted_from, end, write

End = Callable[[Log, int], int]


def as_leader(log: Log, producer_id: int) -> int:
    return end(log, producer_id, ABORT)


def as_follower(log: Log, producer_id: int) -> int:
    """The same marker, as a leader's log has it."""
    offset = log.log_end_offset
    batch = bytearray(build_marker_batch(EndMarker(ABORT, 0), producer_id=producer_id, producer_epoch=0, timestamp=0))
    view = memoryview(batch)
    patch_offset_and_epoch(view, offset, 0)
    append_copy(log, view, parse_header(view), 0)
    return offset


def with_open_transaction(files: SimFiles) -> Log:
    """Offsets 0 and 1 belong to an open transaction; all that was written is on disk."""
    files.make_dir("/data")
    log = new_log(files)
    for directory in ("/", "/data", "/data/t-0"):
        files.sync_dir(directory)
    write(log, 7, "a", "b")
    synced(log)
    return log


def synced(log: Log) -> None:
    work, offset = log.unsynced()
    for item in work:
        item.sync()
    log.synced(offset)


def restarted(files: SimFiles, recovery_point: int) -> Log:
    again = open_log(files, "/data/t-0", CONFIG, Checkpoint(recovery_point=recovery_point), now_ms=0)
    again.producers.high_watermark_advanced(again.log_end_offset)
    return again


@pytest.mark.parametrize("append_marker", [as_leader, as_follower])
@pytest.mark.parametrize(("operation", "path"), [("append", "*.txnindex"), ("open", "*.txnindex"), ("append", "*.log")])
def test_marker_that_found_the_disk_full_is_written_once(append_marker: End, operation: str, path: str) -> None:
    with SimFiles() as files:
        log = with_open_transaction(files)
        files.fail(operation, path=path, error=errno.ENOSPC)
        with pytest.raises(DiskFull):
            append_marker(log, 7)
        assert log.log_end_offset == log.active.next_offset == 2
        assert log.producers.first_unstable_offset == 0, "the transaction is still open"
        assert append_marker(log, 7) == 2
        append(log, *("later",) * 5)
        synced(log)
        assert aborted_from(log, 0) == [AbortedTxn(7, 0, 2, 3)]
        again = restarted(files, recovery_point=8)
        assert again.log_end_offset == 8
        assert not any(segment.holes for segment in again.segments)
        assert aborted_from(again, 0) == [AbortedTxn(7, 0, 2, 3)]


@pytest.mark.parametrize("append_marker", [as_leader, as_follower])
def test_index_entry_that_cannot_be_removed_is_no_full_disk(append_marker: End) -> None:
    with SimFiles() as files:
        log = with_open_transaction(files)
        files.fail("append", path="*.log", error=errno.ENOSPC)
        files.fail("truncate", path="*.txnindex", error=errno.ENOSPC)
        with pytest.raises(StorageError) as raised:
            append_marker(log, 7)
        assert not isinstance(raised.value, DiskFull), "the partition must go offline"
        again = restarted(files, recovery_point=2)
        assert again.active.aborted.last_offset() == -1
        assert append_marker(again, 7) == 2


@pytest.mark.parametrize("has_snapshot", [True, False])
@pytest.mark.parametrize("power_fails", [True, False])
def test_crash_between_index_entry_and_marker_leaves_neither(has_snapshot: bool, power_fails: bool) -> None:
    """A snapshot at the end of the log keeps recovery from reading the segment again."""
    with SimFiles() as files:
        log = with_open_transaction(files)
        if has_snapshot:
            log.write_producer_snapshot()
        files.open("/data/t-0/00000000000000000000.txnindex", create=True)
        files.sync_dir("/data/t-0")
        files.lose_power_before(3)  # past the open and the append of the index
        with pytest.raises(PowerLost):
            end(log, 7, ABORT)
        files.heal()
        files.open("/data/t-0/00000000000000000000.txnindex").sync()
        if power_fails:
            files.lose_power()
        again = restarted(files, recovery_point=2)
        append(again, "committed at the offset of the marker that was lost")
        assert aborted_from(again, 0) == []
        assert again.producers.first_unstable_offset == 0
        assert end(again, 7, ABORT) == 3
        assert aborted_from(again, 0) == [AbortedTxn(7, 0, 3, 4)]


def test_sync_that_finds_the_disk_full_is_not_retried() -> None:
    """The index is synced before the snapshot that vouches for it. Once failed, its pages never reach the disk."""
    with SimFiles() as files:
        log = with_open_transaction(files)
        end(log, 7, ABORT)
        log.roll(0)
        files.fail("sync", path="*.txnindex", error=errno.ENOSPC)
        with pytest.raises(StorageError) as raised:
            synced(log)
        assert not isinstance(raised.value, DiskFull)


def roll(log: Log) -> None:
    log.roll(0)


def roll_twice(log: Log) -> None:
    """The second segment has no aborted transaction, and its snapshot vouches for the first one's index too."""
    log.roll(0)
    append(log, "in the second segment")
    log.roll(0)


def roll_again_after_full_disk(log: Log) -> None:
    assert isinstance(log.files, SimFiles)
    log.files.fail("open", path="*4.log", error=errno.ENOSPC)
    append(log, "the last of the first segment")
    with pytest.raises(DiskFull):
        log.roll(0)
    log.roll(0)


def roll_again_after_full_index(log: Log) -> None:
    assert isinstance(log.files, SimFiles)
    log.files.fail("append", path="*.timeindex", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        log.roll(0)
    log.roll(0)


@pytest.mark.parametrize("do_roll", [roll, roll_twice, roll_again_after_full_disk, roll_again_after_full_index])
def test_no_snapshot_is_written_before_the_index_is_synced(do_roll: Callable[[Log], None]) -> None:
    """The power fails when everything but the bytes of the index has reached the disk."""
    with SimFiles() as files:
        log = with_open_transaction(files)
        end(log, 7, ABORT)
        synced(log)
        do_roll(log)
        for name in files.list("/data/t-0"):
            if not name.endswith(".txnindex"):
                files.open(f"/data/t-0/{name}").sync()
        files.sync_dir("/data/t-0")
        files.lose_power()
        again = restarted(files, recovery_point=3)
        assert aborted_from(again, 0) == [AbortedTxn(7, 0, 2, 3)]


def test_index_that_recovery_wrote_again_is_synced_at_a_clean_stop() -> None:
    """Killed after a roll: the segment is not the active one any more when its index is written again."""
    with SimFiles() as files:
        log = with_open_transaction(files)
        end(log, 7, ABORT)
        synced(log)
        log.roll(0)
        again = restarted(files, recovery_point=3)
        append(again, "in the second segment")
        again.close()
        files.lose_power()
        stopped = Checkpoint(recovery_point=again.log_end_offset, clean=True)
        last = open_log(files, "/data/t-0", CONFIG, stopped, now_ms=0)
        assert aborted_from(last, 0) == [AbortedTxn(7, 0, 2, 3)]


def test_index_whose_sync_failed_is_on_disk_after_the_next_start() -> None:
    """The next start finds the entries in the page cache, and they are right."""
    with SimFiles() as files:
        log = with_open_transaction(files)
        end(log, 7, ABORT)
        synced(log)
        log.roll(0)
        files.fail("sync", path="*.txnindex")
        with pytest.raises(StorageError):
            synced(log)
        again = restarted(files, recovery_point=3)
        append(again, "in the second segment")
        again.close()
        files.lose_power()
        stopped = Checkpoint(recovery_point=again.log_end_offset, clean=True)
        last = open_log(files, "/data/t-0", CONFIG, stopped, now_ms=0)
        assert aborted_from(last, 0) == [AbortedTxn(7, 0, 2, 3)]


def test_full_disk_that_prevents_a_snapshot_prevents_no_append() -> None:
    with SimFiles() as files:
        log = new_log(files)
        append(log, "in the first segment")
        files.fail("append", path="*.snapshot.tmp", error=errno.ENOSPC)
        log.roll(0)
        append(log, "in the second segment")
        assert [segment.base_offset for segment in log.segments] == [0, 1]
        assert restarted(files, recovery_point=2).log_end_offset == 2
