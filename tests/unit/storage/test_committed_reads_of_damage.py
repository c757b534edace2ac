"""Readers of committed data in a log with corrupt batches: intact records before them stay readable."""

import pytest

from headrace.model.errors import CorruptLog
from headrace.records.batch import BatchHeader, walk
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, new_log
from tests.unit.storage.test_log_transactions import ABORT, end, write

DIRECTORY = "/data/t-0"
BATCHES = 6


def written_log(files: SimFiles) -> Log:
    """An aborted transaction in the first segment, and a sealed one with plain and aborted records behind it."""
    log = new_log(files)
    write(log, 7, "aborted")
    end(log, 7, ABORT)
    log.roll(0)
    for number in range(BATCHES):
        append(log, f"value {number}")
        write(log, 7, f"aborted {number}", sequence=number + 1)
        end(log, 7, ABORT)
    log.roll(0)
    append(log, "behind it")
    log.close()
    return log


def reopen(files: SimFiles, log: Log) -> Log:
    again = open_log(files, DIRECTORY, CONFIG, Checkpoint(recovery_point=log.log_end_offset, clean=True), now_ms=0)
    again.producers.high_watermark_advanced(again.log_end_offset)
    return again


def readable(log: Log, bytes_max: int) -> dict[int, list[int]]:
    """The offset behind each read, and the first offsets of the transactions that a reader has to leave out of it."""
    found: dict[int, list[int]] = {}
    offset = 0
    while offset < log.log_end_offset:
        try:
            piece = log.read(offset, bytes_max, log.log_end_offset)
        except CorruptLog:
            offset += 1
            continue
        assert piece is not None
        left_out = log.aborted_transactions(offset, piece)
        for position, header in log_batches(piece.read()):
            found[header.base_offset] = sorted(
                one.first_offset for one in left_out if one.first_offset <= header.base_offset <= one.last_offset
            )
            offset = header.next_offset
            assert position >= 0
    return found


def log_batches(data: bytes) -> list[tuple[int, BatchHeader]]:
    return list(walk(memoryview(data)))


@pytest.mark.parametrize("bytes_max", [1, 300, 1_000_000])
@pytest.mark.parametrize("batch", range(BATCHES * 3))
@pytest.mark.parametrize("byte", [0, 7, 8, 11, 16, 23, 26, 57, -5])
def test_intact_records_around_a_corrupt_batch_are_read(batch: int, byte: int, bytes_max: int) -> None:
    with SimFiles() as files:
        log = written_log(files)
        right = readable(reopen(files, log), bytes_max)
        segment = log.segments[1]
        position, header = list(segment.headers())[batch]
        files.flip_bit(segment.path, byte=position + (byte if byte >= 0 else header.total_bytes + byte), bit=1)
        found = readable(reopen(files, log), bytes_max)
        assert found == {offset: left_out for offset, left_out in right.items() if offset != header.base_offset}
