"""A damaged index of aborted transactions: no reader and no compaction takes aborted records for committed ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.model.errors import CorruptLog
from headrace.storage.cleaner.cleaner import Cleaner
from headrace.storage.cleaner.log_to_clean import cleanable
from headrace.storage.io.stepwise import run_through
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.producer.producer_snapshot_file import snapshot_offsets, snapshot_path
from headrace.storage.segment.transaction_index import ENTRY, READ_ENTRIES, AbortedTxn
from headrace.storage.segment.transaction_index_repair import rebuild_index
from headrace.testing import SimFiles
from tests.unit.storage.cleaner import compaction_kit
from tests.unit.storage.cleaner.compaction_kit import clean
from tests.unit.storage.cleaner.compaction_kit import write as keyed
from tests.unit.storage.log_kit import CONFIG, append, new_log
from tests.unit.storage.test_log_transactions import ABORT, COMMIT, end, write

DIRECTORY = "/data/t-0"


def sync(log: Log) -> None:
    work, offset = log.unsynced()
    for item in work:
        item.sync()
    log.synced(offset)


def transactions(log: Log, rounds: int, sequence: int = 0) -> None:
    for number in range(rounds):
        for producer_id, kind in ((7, ABORT), (8, COMMIT), (9, ABORT)):
            write(log, producer_id, f"{producer_id}", sequence=sequence + number)
            end(log, producer_id, kind)


def written_log(files: SimFiles) -> Log:
    """Sealed segments with and without aborted transactions, and the active one."""
    log = new_log(files)
    transactions(log, 2)
    log.roll(0)
    append(log, "plain")
    log.roll(0)
    transactions(log, 1, sequence=2)
    log.roll(0)
    transactions(log, 1, sequence=3)
    sync(log)
    return log


def reopen(files: SimFiles, log: Log, *, clean: bool) -> Log:
    checkpoint = Checkpoint(recovery_point=log.log_end_offset, clean=clean)
    again = open_log(files, DIRECTORY, CONFIG, checkpoint, now_ms=0)
    again.producers.high_watermark_advanced(again.log_end_offset)
    return again


def aborted(log: Log) -> list[AbortedTxn]:
    return [txn for segment in log.segments for txn in segment.aborted.between(0, 1 << 60)[0]]


def lose_entries(files: SimFiles, path: str, left: int) -> None:
    files.open(path).truncate(left * ENTRY.size)


def double_the_last(files: SimFiles, path: str) -> None:
    file = files.open(path)
    file.append(file.read(file.size - ENTRY.size, ENTRY.size))


DAMAGES: dict[str, Callable[[SimFiles, str], None]] = {
    **{
        f"bit in byte {byte}": lambda files, path, byte=byte: files.flip_bit(path, byte=byte, bit=byte % 8)  # type: ignore[misc]
        for byte in range(ENTRY.size)
    },
    "last entry lost": lambda files, path: lose_entries(files, path, len(files.read(path)) // ENTRY.size - 1),
    "emptied": lambda files, path: lose_entries(files, path, 0),
    "gone": lambda files, path: files.remove(path),
    "an entry too many": double_the_last,
}


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_index_is_rebuilt_from_the_batches(damage: str, clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    for number in (0, 2, 3):
        with SimFiles() as files:
            log = written_log(files)
            right = aborted(log)
            path = log.segments[number].path.replace(".log", ".txnindex")
            if clean:
                log.close()
            caplog.clear()
            DAMAGES[damage](files, path)
            again = reopen(files, log, clean=clean)
            assert aborted(again) == right, number
            assert number == 3 or path in caplog.text, "an operator learns of it"
            sync(again)
            transactions(again, 1, sequence=4)
            right = aborted(again)
            again.close()
            assert aborted(reopen(files, again, clean=True)) == right


def test_index_with_a_negative_version_is_rebuilt() -> None:
    with SimFiles() as files:
        log = written_log(files)
        right = aborted(log)
        files.flip_bit(log.segments[0].path.replace(".log", ".txnindex"), byte=0, bit=7)
        for offset in snapshot_offsets(files, DIRECTORY):
            files.remove(snapshot_path(DIRECTORY, offset))
        assert aborted(reopen(files, log, clean=False)) == right


def test_index_that_compaction_changed_is_rebuilt_with_a_damaged_later_one() -> None:
    """The snapshot before the damaged one still lists the entries that compaction has removed."""
    config = replace(compaction_kit.COMPACTED, segment_bytes=1000)
    with SimFiles() as files:
        log = Log.create(files, DIRECTORY, config, now_ms=0)
        for number, producer_id in enumerate((7, 8)):
            keyed(log, (f"filler {number}", "x" * 600))
            keyed(log, ("key", "value"), producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
            end(log, producer_id, ABORT)
            log.roll(0)
        keyed(log, ("key", "value"), producer_id=7, producer_epoch=0, base_sequence=1, transactional=True)
        end(log, 7, COMMIT)
        sync(log)
        for _ in range(2):  # the first round removes the aborted record, the second one the entry
            clean(log)
        assert [len(segment.aborted.between(0, 1 << 60)[0]) for segment in log.segments] == [0, 1, 0]
        files.flip_bit(log.segments[1].path.replace(".log", ".txnindex"), byte=3)
        checkpoint = Checkpoint(recovery_point=log.log_end_offset)
        again = open_log(files, DIRECTORY, config, checkpoint, now_ms=0)
        assert [txn.producer_id for txn in aborted(again)] == [8]


def test_all_indexes_are_damaged_at_once_and_rebuilt() -> None:
    with SimFiles() as files:
        log = written_log(files)
        right = aborted(log)
        log.close()
        for name in files.list(DIRECTORY):
            if name.endswith(".txnindex"):
                files.flip_bit(f"{DIRECTORY}/{name}", byte=9)
        again = reopen(files, log, clean=True)
        assert aborted(again) == right
        again.close()
        assert snapshot_offsets(files, DIRECTORY)[-1] == again.log_end_offset, "the next start reads no batches again"
        assert aborted(reopen(files, again, clean=True)) == right


def test_indexes_of_a_killed_process_are_believed_behind_a_snapshot() -> None:
    """The active segment's index has entries that no snapshot knows of: they are compared with the batches."""
    with SimFiles() as files:
        log = written_log(files)
        log.close()
        again = reopen(files, log, clean=True)
        transactions(again, 2, sequence=4)
        sync(again)
        right = aborted(again)
        assert aborted(reopen(files, again, clean=False)) == right


@pytest.mark.parametrize("damage", ["bit in byte 9", "bit in byte 17", "last entry lost", "emptied", "gone"])
def test_index_damaged_while_open_raises_and_is_rebuilt(damage: str) -> None:
    with SimFiles() as files:
        log = written_log(files)
        right = aborted(log)
        segment = log.segments[0]
        DAMAGES[damage](files, segment.path.replace(".log", ".txnindex"))
        with pytest.raises(CorruptLog):
            segment.aborted.between(0, 100)
        with pytest.raises(CorruptLog):
            segment.aborted.check()
        rebuild_index(log, segment).apply()
        assert aborted(log) == right
        segment.aborted.check()


def test_long_index_is_checked_in_full_at_start() -> None:
    with SimFiles() as files:
        log = new_log(files)
        for number in range(READ_ENTRIES + 3):
            write(log, 7, "x", sequence=number)
            end(log, 7, ABORT)
        log.roll(0)
        sync(log)
        right = aborted(log)
        log.close()
        files.flip_bit(f"{DIRECTORY}/{0:020d}.txnindex", byte=ENTRY.size * (READ_ENTRIES // 2) + 17)
        assert aborted(reopen(files, log, clean=True)) == right


def test_indexes_without_their_log_are_removed() -> None:
    """The next segment of that name would go on with the entries of the former one."""
    with SimFiles() as files:
        log = written_log(files)
        last = log.segments[-1]
        log.close()
        files.remove(last.path)
        again = open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=last.base_offset), now_ms=0)
        assert not files.exists(last.path.replace(".log", ".txnindex"))
        assert all(txn.last_offset < last.base_offset for txn in aborted(again))


# Compaction

COMPACTED = replace(CONFIG, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)


def compact(log: Log) -> None:
    dirty = cleanable(
        log.segments,
        cleaned_to=0,
        log_start_offset=0,
        stable_offset=log.log_end_offset,
        config=COMPACTED,
        now_ms=10**9,
    )
    run_through(Cleaner(log, dirty, now_ms=10**9).run())


@pytest.mark.parametrize("damage", ["bit in byte 9", "bit in byte 17", "last entry lost", "emptied", "gone"])
def test_compaction_refuses_a_damaged_index(damage: str) -> None:
    with SimFiles() as files:
        log = written_log(files)
        before = files.read(log.segments[0].path)
        DAMAGES[damage](files, log.segments[0].path.replace(".log", ".txnindex"))
        with pytest.raises(CorruptLog, match="txnindex"):
            compact(log)
        assert files.read(log.segments[0].path) == before


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_compacted_indexes_pass_the_next_start(clean: bool, caplog: pytest.LogCaptureFixture) -> None:
    with SimFiles() as files:
        log = written_log(files)
        compact(log)
        right = aborted(log)
        if clean:
            log.close()
        caplog.clear()
        again = reopen(files, log, clean=clean)
        assert aborted(again) == right
        assert not caplog.records, "nothing is rebuilt"
