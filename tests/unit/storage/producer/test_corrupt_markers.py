"""A flipped bit in a transaction marker, in any of its bytes: what was aborted stays aborted, what was committed stays.

The entry of the `.txnindex` was written with the marker. Recovery uses it where the marker cannot be read; else it
finds the bit that has flipped.
"""

from random import Random

import pytest

from headrace.records.batch import HEADER_BYTES, parse_header
from headrace.records.control import ControlType
from headrace.records.record import decode_records
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.producer.corrupt_markers import corrected_marker
from headrace.storage.producer.producer_snapshot_file import remove_snapshots
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_verifier import CorruptRange
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, new_log
from tests.unit.storage.test_log_transactions import ABORT, COMMIT, end, write

DIRECTORY = "/data/t-0"
# What ends the transactions of one producer. The first of these markers gets the flipped bit.
HISTORIES = [(ABORT, COMMIT), (COMMIT, ABORT), (ABORT, ABORT), (ABORT, COMMIT, ABORT)]


def written(files: SimFiles, kinds: tuple[ControlType, ...], *, rolls: bool) -> tuple[Log, int]:
    """Transactions of one record each, another producer's record between them; and where the first marker lies."""
    files.make_dir("/data")
    log = new_log(files)
    position = 0
    for number, kind in enumerate(kinds):
        write(log, 7, f"{number} {kind.name}", epoch=number)
        append(log, f"plain {number}", producer_id=9, producer_epoch=0, base_sequence=number)
        if not number:
            position = log.active.size
        end(log, 7, kind, epoch=number)
    write(log, 8, "open")
    if rolls:
        log.roll(0)
        append(log, "in the next segment")
    work, synced_to = log.unsynced()
    for item in work:
        item.sync()
    log.synced(synced_to)
    return log, position


def reopened(files: SimFiles, end_offset: int, *, clean: bool) -> Log:
    checkpoint = Checkpoint(recovery_point=end_offset, clean=clean)
    again = open_log(files, DIRECTORY, CONFIG, checkpoint, now_ms=0)
    again.producers.high_watermark_advanced(again.log_end_offset)
    return again


def committed(log: Log) -> list[str]:
    """What a read_committed consumer gets of the transactions of producer 7, past unreadable batches."""
    values: list[str] = []
    stable = log.producers.first_unstable_offset
    limit = log.log_end_offset if stable is None else stable
    aborted: list[tuple[int, int, int]] = []
    for segment in log.segments:
        entries, _ = segment.aborted.between(0, log.log_end_offset)
        aborted += [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in entries]
    for segment in log.segments:
        for position, _ in segment.headers():
            data = segment.file.read(position, segment.size)
            header = parse_header(data[:HEADER_BYTES])
            if header.is_control or header.producer_id != 7 or header.base_offset >= limit:
                continue
            if not any(pid == 7 and first <= header.base_offset < last for pid, first, last in aborted):
                records = decode_records(memoryview(data)[: header.total_bytes], header)
                values += [(record.value or b"").decode() for record in records]
    return values


@pytest.mark.parametrize("start", ["hole", "trusted segment", "clean"])
@pytest.mark.parametrize("kinds", HISTORIES, ids=lambda kinds: "-".join(kind.name for kind in kinds))
def test_flipped_bit_in_marker_changes_no_decision(kinds: tuple[ControlType, ...], start: str) -> None:
    """Without a snapshot, as a crash before its sync leaves it: so the markers are read again."""
    right = [f"{number} COMMIT" for number, kind in enumerate(kinds) if kind is COMMIT]
    with SimFiles() as files:
        log, position = written(files, kinds, rolls=False)
        data = files.read(log.active.path)
        size = parse_header(data[position : position + HEADER_BYTES]).total_bytes
    for byte in range(position, position + size):
        for bit in (0, 7):
            with SimFiles() as files:
                log, _ = written(files, kinds, rolls=start == "trusted segment")
                first = log.segments[0].path
                if start == "clean":
                    log.close()
                remove_snapshots(files, DIRECTORY, after=-1)
                files.flip_bit(first, byte=byte, bit=bit)
                again = reopened(files, log.log_end_offset, clean=start == "clean")
                place = f"byte {byte - position} bit {bit}"
                assert again.log_end_offset == log.log_end_offset, place
                assert committed(again) == right, place
                assert again.producers.first_unstable_offset is not None, f"{place}: producer 8 has one open"
                assert end(again, 8, ABORT) == log.log_end_offset, place
                assert any(txn.producer_id == 8 for txn in again.active.aborted.entries_from(0)), (
                    f"{place}: an open transaction behind the corrupt marker is known"
                )


@pytest.mark.parametrize("clean", [False, True], ids=["unclean", "clean"])
@pytest.mark.parametrize("epoch", [0, 1], ids=["same epoch", "next epoch"])
@pytest.mark.parametrize("then", [ABORT, COMMIT], ids=lambda kind: kind.name)
def test_transaction_after_a_corrupt_commit_marker_does_not_change_it(
    then: ControlType, epoch: int, clean: bool
) -> None:
    with SimFiles() as files:
        log, position = written(files, (COMMIT,), rolls=False)
        if clean:
            log.close()
        remove_snapshots(files, DIRECTORY, after=-1)
        files.flip_bit(log.segments[0].path, byte=position + 70, bit=0)
        again = reopened(files, log.log_end_offset, clean=clean)
        write(again, 7, "next", epoch=epoch, sequence=1 - epoch)
        end(again, 7, then, epoch=epoch)
        end(again, 8, ABORT)
        for log_now in (again, reopened(files, again.log_end_offset, clean=False)):
            expected = ["0 COMMIT", "next"] if then is COMMIT else ["0 COMMIT"]
            assert (committed(log_now), log_now.producers.first_unstable_offset) == (expected, None)


def zero_marker(files: SimFiles, log: Log, position: int, size: int) -> None:
    """More than one bit: nothing tells what stood there."""
    path = log.segments[0].path
    data = bytearray(files.read(path))
    data[position : position + size] = bytes(size)
    files.replace(path, bytes(data))


def test_marker_of_which_nothing_is_left_is_reported_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    with SimFiles() as files:
        log, position = written(files, (COMMIT,), rolls=False)
        zero_marker(files, log, position, 78)
        again = reopened(files, log.log_end_offset, clean=False)
        assert again.producers.first_unstable_offset == 0
        assert (
            "transaction of producer id 7 (epoch 0) at offset 0 may be in the unreadable offsets 2 to 2" in caplog.text
        )
        assert "headrace transactions abort --topic t --partition 0 --start 0" in caplog.text
        assert "producer id 8" not in caplog.text, "its transaction began behind the corruption"


def test_abort_marker_of_which_nothing_is_left_is_known_by_its_index(caplog: pytest.LogCaptureFixture) -> None:
    with SimFiles() as files:
        log, position = written(files, (ABORT, COMMIT), rolls=False)
        zero_marker(files, log, position, 78)
        again = reopened(files, log.log_end_offset, clean=False)
        assert committed(again) == ["1 COMMIT"]
        assert "may be in the unreadable offsets" not in caplog.text


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_marker_with_several_flipped_bits_is_never_taken_for_another_one(bits: int) -> None:
    random = Random(bits)
    with SimFiles() as files:
        log, position = written(files, (ABORT,), rolls=False)
        segment = log.segments[0]
        whole = bytearray(files.read(segment.path))
    hole = CorruptRange(position, position + 78, 2, 3, "")
    for _ in range(200):
        flipped = bytearray(whole)
        for at in random.sample(range(17 * 8, 78 * 8), bits):
            flipped[position + at // 8] ^= 1 << at % 8
        with SimFiles() as files:
            files.make_dir(DIRECTORY)
            files.open(segment.path, create=True).append(bytes(flipped))
            again = LogSegment(files, DIRECTORY, 0, index_interval_bytes=100, create=False, now_ms=0)
            assert corrected_marker(again, hole) is None
