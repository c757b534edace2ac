"""Checksums of overlapping ranges, from those of the prefixes of a file; and what a search for a valid batch costs."""

from random import Random

import pytest

from headrace.config.values import LogConfig
from headrace.records.batch import HEADER, parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.records.crc import crc32c
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.segment.range_checksums import BLOCK_BYTES, RangeChecksums
from headrace.testing.simulation.files import SimFile, SimFiles

DIRECTORY = "/data/t-0"
MIB = 1024 * 1024


@pytest.mark.parametrize("size", [1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 1, MIB + 1, 2 * MIB + 4097])
def test_checksum_of_a_range_equals_that_of_its_bytes(size: int) -> None:
    random = Random(size)
    data = random.randbytes(size)
    with SimFiles() as files:
        files.make_dir("/data")
        file = files.open("/data/log", create=True)
        file.append(data)
        base = random.randrange(size)
        checksums = RangeChecksums(file, base)
        ends = {base, size, *(random.randint(base, size) for _ in range(20))}
        edges = set(range(base, size, BLOCK_BYTES * 37))
        for start in ends | edges:
            for end in {one for one in ends | edges if one >= start}:
                assert checksums.of(start, end) == crc32c(data[start:end]), (base, start, end)


@pytest.mark.parametrize("end", [101, BLOCK_BYTES, 3 * MIB])
def test_range_behind_the_end_of_the_file_has_no_checksum(end: int) -> None:
    with SimFiles() as files:
        files.make_dir("/data")
        file = files.open("/data/log", create=True)
        file.append(bytes(100))
        checksums = RangeChecksums(file, 0)
        assert checksums.of(50, end) is None
        file.append(bytes(end - 100))
        assert checksums.of(50, end) == crc32c(bytes(end - 50))


def _log(files: SimFiles, values: list[bytes]) -> Log:
    log = Log.create(files, DIRECTORY, LogConfig(), now_ms=0)
    for value in values:
        batch = memoryview(bytearray(build_batch([NewRecord(1, None, value)])))
        log.append(batch, parse_header(batch), 0, 0)
    log.close()
    return log


@pytest.mark.parametrize("base_offset", [0, 1, 3, 900])
@pytest.mark.parametrize("claimed_bytes", [100, 900_000, 3_000_000, 100_000_000])
def test_headers_in_a_record_behind_corruption_cost_no_checksum_each(
    base_offset: int, claimed_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them names a range of the file that its checksum would have to be computed for."""
    header = HEADER.pack(base_offset, claimed_bytes, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    with SimFiles() as files:
        log = _log(files, [header * (50_000 // len(header)), *[b"x" * 900_000] * 4])
        size = log.size_bytes
        files.flip_bit(log.active.path, byte=9, bit=3)  # the length of the first batch
        files.boots += 1
        bytes_read = 0
        read = SimFile.read

        def counted(file: SimFile, position: int, length: int) -> bytes:
            nonlocal bytes_read
            data = read(file, position, length)
            bytes_read += len(data)
            return data

        monkeypatch.setattr(SimFile, "read", counted)
        opened = open_log(files, DIRECTORY, LogConfig(), Checkpoint(recovery_point=5), now_ms=0)
        assert opened.log_end_offset == 5
        assert [(hole.base_offset, hole.next_offset) for hole in opened.active.holes] == [(0, 1)]
        assert bytes_read < 10 * size


def test_valid_batch_in_a_record_is_not_taken_if_its_offset_cannot_be_right() -> None:
    """A record that holds another log's batch, whose offset is below the last valid one."""
    inner = bytearray(build_batch([NewRecord(1, None, b"of another log")]))
    with SimFiles() as files:
        log = _log(files, [b"first", bytes(inner), b"third"])
        path = log.active.path
        position = parse_header(log.active.file.read(0, 61)).total_bytes
        files.flip_bit(path, byte=position + 9, bit=3)
        files.boots += 1
        opened = open_log(files, DIRECTORY, LogConfig(), Checkpoint(recovery_point=3), now_ms=0)
        assert [(hole.base_offset, hole.next_offset) for hole in opened.active.holes] == [(1, 2)]
        assert opened.log_end_offset == 3
