"""Transactions in a log: markers, what they leave in the `.txnindex`, and what a restart makes of it."""

import logging
from collections.abc import Mapping

import pytest

from headrace.model.errors import CoordinatorFenced, InvalidProducerEpoch
from headrace.records.batch import parse_header
from headrace.records.control import ControlType, EndMarker
from headrace.storage.io.file_system import FileSystem
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.log_truncation import truncate_log
from headrace.storage.log_types import Producer
from headrace.storage.producer.producer_snapshot_file import remove_snapshots, snapshot_path
from headrace.storage.segment.transaction_index import AbortedTxn
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, batch_of, new_log

COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT
TXN_INDEX = "/data/t-0/00000000000000000000.txnindex"
PRODUCER_ID_AT = 43  # in a batch's header; its first bit makes it negative
LOG = "/data/t-0/00000000000000000000.log"


def write(log: Log, producer_id: int, *values: str, sequence: int = 0, epoch: int = 0) -> int:
    appended = append(
        log, *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    return appended.base_offset


def end(log: Log, producer_id: int, kind: ControlType, *, epoch: int = 0, coordinator: int = 0) -> int:
    marker = EndMarker(kind, coordinator)
    appended = log.append_marker(marker, Producer(producer_id, epoch), 0, 2_000, uses_tv2=False)
    log.producers.high_watermark_advanced(log.log_end_offset)
    return appended.base_offset


def aborted_from(log: Log, offset: int) -> list[AbortedTxn]:
    piece = log.read(offset, 1_000_000, log.log_end_offset)
    assert piece is not None
    return log.aborted_transactions(offset, piece)


def reopened(log: Log, files: FileSystem, *, clean: bool = False) -> Log:
    if clean:
        log.close()
    checkpoint = Checkpoint(recovery_point=log.log_end_offset if clean else 0, clean=clean)
    again = open_log(files, "/data/t-0", CONFIG, checkpoint, now_ms=0)
    again.producers.high_watermark_advanced(again.log_end_offset)
    return again


def test_an_open_transaction_holds_back_the_stable_end_until_its_marker() -> None:
    log = new_log()
    append(log, "plain")
    write(log, 7, "a", "b")
    assert log.producers.first_unstable_offset == 1
    assert end(log, 7, COMMIT) == 3, "a marker takes one offset"
    assert log.producers.first_unstable_offset is None
    assert log.log_end_offset == 4
    assert aborted_from(log, 0) == [], "what was committed is nobody's to leave out"


def test_readers_are_told_of_aborted_transactions_that_touch_what_they_read() -> None:
    log = new_log()
    first = write(log, 7, "a")
    write(log, 8, "x")
    marker = end(log, 7, ABORT)
    end(log, 8, COMMIT)
    append(log, "later")
    assert aborted_from(log, 0) == [AbortedTxn(7, first, marker, 1)]
    assert aborted_from(log, marker + 1) == []


@pytest.mark.parametrize("how", ["clean", "killed", "truncated", "from a snapshot"])
def test_transactional_batch_without_producer_id_opens_no_transaction(how: str) -> None:
    """Earlier versions accepted it. No marker could end that transaction."""
    files = MemoryFiles()
    log = new_log(files)
    append(log, "plain")
    write(log, -1, "a", "b", sequence=-1)
    append(log, "behind")
    if how == "truncated":
        truncate_log(log, 3, 0)
        assert log.producers.first_unstable_offset is None
        assert log.log_end_offset == 3
    if how == "from a snapshot":
        log.producers.applied(parse_header(batch_of(["a", "b"], transactional=True, base_offset=1)))
        assert log.producers.first_unstable_offset == 1
    again = reopened(log, files, clean=how in ("clean", "from a snapshot"))
    assert again.log_end_offset == log.log_end_offset
    assert again.producers.first_unstable_offset is None
    assert again.producers.get(-1) is None


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_keeps_aborted_and_open_transactions(clean: bool) -> None:
    files = MemoryFiles()
    log = new_log(files)
    write(log, 7, "a")
    end(log, 7, ABORT)
    write(log, 8, "open")
    again = reopened(log, files, clean=clean)
    assert aborted_from(again, 0) == [AbortedTxn(7, 0, 1, 2)]
    assert again.producers.first_unstable_offset == 2
    end(again, 8, ABORT)
    assert [txn.producer_id for txn in aborted_from(again, 0)] == [7, 8]


@pytest.mark.parametrize("damage", [b"", b"\x00" * 34, b"\xff" * 40], ids=["lost", "zeros", "torn"])
def test_an_index_of_aborted_transactions_that_a_crash_spoilt_is_written_again(damage: bytes) -> None:
    files = MemoryFiles()
    log = new_log(files)
    write(log, 7, "a")
    end(log, 7, ABORT)
    files.replace(TXN_INDEX, damage)
    assert aborted_from(reopened(log, files), 0) == [AbortedTxn(7, 0, 1, 2)]


def test_damage_to_the_index_of_an_old_segment_is_repaired_from_the_snapshot_before_it() -> None:
    files = MemoryFiles()
    log = new_log(files)
    write(log, 7, "a")
    log.roll(0)
    end(log, 7, ABORT)
    log.roll(0)
    append(log, "later")
    log.close()
    files.replace("/data/t-0/00000000000000000001.txnindex", b"\x00" * 34)
    again = open_log(files, "/data/t-0", CONFIG, Checkpoint(recovery_point=3, clean=True), now_ms=0)
    assert aborted_from(again, 0) == [AbortedTxn(7, 0, 1, 2)]


def test_the_marker_may_stand_in_a_later_segment_than_the_records() -> None:
    log = new_log()
    write(log, 7, "a")
    log.roll(0)
    end(log, 7, ABORT)
    assert aborted_from(log, 0) == [AbortedTxn(7, 0, 1, 2)]


def test_an_old_producer_is_fenced_by_the_marker_of_a_newer_epoch() -> None:
    log = new_log()
    write(log, 7, "a")
    end(log, 7, ABORT, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        write(log, 7, "late", sequence=1)


def test_a_marker_of_an_older_coordinator_is_refused() -> None:
    log = new_log()
    write(log, 7, "a")
    end(log, 7, COMMIT, coordinator=3)
    with pytest.raises(CoordinatorFenced):
        end(log, 7, COMMIT, coordinator=2)


def test_a_coordinator_writes_in_a_producers_transaction_without_a_sequence() -> None:
    log = new_log()
    batch = memoryview(bytearray(batch_of(["offsets"], producer_id=7, producer_epoch=1, transactional=True)))
    log.append_for_producer(batch, parse_header(batch), 0, 0)
    assert log.producers.first_unstable_offset == 0
    stale = memoryview(bytearray(batch_of(["late"], producer_id=7, producer_epoch=0, transactional=True)))
    with pytest.raises(InvalidProducerEpoch):
        log.append_for_producer(stale, parse_header(stale), 0, 0)


def test_an_index_that_is_written_again_may_be_lost_again() -> None:
    """Snapshots vouch for the index up to where they stand: of an index that is gone, they must be gone before."""
    with SimFiles() as files:
        files.make_dir("/data")
        log = new_log(files)
        for folder in ("/", "/data", "/data/t-0"):
            files.sync_dir(folder)
        write(log, 7, "a")
        end(log, 7, ABORT)
        stopped = reopened(log, files, clean=True)
        write(stopped, 7, "b", sequence=1)
        end(stopped, 7, ABORT)
        stopped.active.file.sync()
        torn = files.read(TXN_INDEX)[:-1]
        files.replace(TXN_INDEX, torn)
        again = open_log(files, "/data/t-0", CONFIG, Checkpoint(recovery_point=2), now_ms=0)
        assert len(aborted_from(again, 0)) == 2
        files.lose_power()
        last = open_log(files, "/data/t-0", CONFIG, Checkpoint(recovery_point=2), now_ms=0)
        assert [(one.first_offset, one.last_offset) for one in aborted_from(last, 0)] == [(0, 1), (2, 3)]


def test_a_batch_whose_producer_is_damaged_opens_no_transaction_that_nobody_can_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = MemoryFiles()
    log = new_log(files)
    write(log, 7, "a")
    end(log, 7, COMMIT)
    log.close()
    remove_snapshots(files, "/data/t-0", after=-1)
    sound = {path: files.read(path) for path in (f"/data/t-0/{name}" for name in files.list("/data/t-0"))}
    again = opened_with(sound, LOG, 8 * PRODUCER_ID_AT + 7)
    again.producers.high_watermark_advanced(again.log_end_offset)
    assert again.producers.first_unstable_offset is None
    assert "fails its checksum" in caplog.text


def test_a_marker_whose_bytes_have_changed_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever bit of it: the transaction was committed, and nobody is told that it was aborted."""
    files = MemoryFiles()
    log = new_log(files)
    write(log, 7, "a")
    marker_at = log.active.file.size
    end(log, 7, COMMIT)
    marker_end = log.active.file.size
    append(log, "later")
    log.close()
    remove_snapshots(files, "/data/t-0", after=-1)  # so that all of it is read again
    sound = {path: files.read(path) for path in (f"/data/t-0/{name}" for name in files.list("/data/t-0"))}
    for bit in range(8 * marker_at, 8 * marker_end):
        again = opened_with(sound, LOG, bit)
        again.producers.high_watermark_advanced(again.log_end_offset)
        assert again.active.aborted.between(0, 100)[0] == [], f"bit {bit}"
        said = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert said or again.producers.first_unstable_offset is None, f"bit {bit}"
        caplog.clear()
        again.active.close()


def opened_with(folder: Mapping[str, bytes], path: str, flipped_bit: int) -> Log:
    """As after a clean stop, but for one bit of one file."""
    files = MemoryFiles()
    files.make_dir("/data/t-0")
    for name, content in folder.items():
        files.replace(name, content)
    damaged = bytearray(folder[path])
    damaged[flipped_bit // 8] ^= 1 << flipped_bit % 8
    files.replace(path, bytes(damaged))
    return open_log(files, "/data/t-0", CONFIG, Checkpoint(clean=True), now_ms=0)


@pytest.mark.parametrize("is_truncated", [True, False])
def test_snapshot_of_removed_records_is_not_used(is_truncated: bool) -> None:
    """A clean stop leaves a snapshot past all segments. It describes none of the records that are written later."""
    files = MemoryFiles()
    log = new_log(files)
    append(log, "of an earlier leader", producer_id=9, producer_epoch=0, base_sequence=0)
    log = reopened(log, files, clean=True)
    if is_truncated:
        truncate_log(log, 0, now_ms=0)
    else:
        files.remove(LOG)
        log = reopened(log, files)
    write(log, 7, "aborted")
    end(log, 7, ABORT)
    again = reopened(log, files)
    assert aborted_from(again, 0) == [AbortedTxn(7, 0, 1, 2)]
    assert again.producers.get(9) is None


@pytest.mark.parametrize("is_truncated", [True, False])
@pytest.mark.parametrize("is_readable", [True, False])
def test_snapshot_older_than_the_first_segment_is_not_used(is_truncated: bool, is_readable: bool) -> None:
    """It lacks the deleted records in between: a producer's last sequence, or the end of a transaction."""
    files = MemoryFiles()
    log = new_log(files)
    write(log, 7, "a")
    append(log, "b", producer_id=9, producer_epoch=0, base_sequence=0)
    log = reopened(log, files, clean=True)  # leaves a snapshot at offset 2
    end(log, 7, COMMIT)
    append(log, "c", producer_id=9, producer_epoch=0, base_sequence=1)
    log.roll(0)  # at offset 4
    append(log, "d", "e")
    for gone in log.advance_log_start(4):
        files.remove(gone.path)
    newest = snapshot_path("/data/t-0", 4)
    if not is_readable:
        files.replace(newest, b"")  # as a power failure leaves a snapshot that was not synced
    if is_truncated:
        truncate_log(log, 5, now_ms=0)
    else:
        log = reopened(log, files)
    append(log, "f", producer_id=9, producer_epoch=0, base_sequence=2)
    assert log.producers.first_unstable_offset is None
    assert aborted_from(log, 4) == []
