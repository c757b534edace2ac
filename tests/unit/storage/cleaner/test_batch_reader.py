"""Reading whole segments: every batch in order, whatever its size, and no damage unnoticed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import CorruptLog
from headrace.records.batch import parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.storage.cleaner.batch_reader import (
    READ_BYTES,
    RECORDS_PER_SLICE,
    BatchReader,
    plain_records,
    records_in_slices,
)
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.io.stepwise import run_through
from headrace.storage.segment.log_segment import LogSegment


def segment_of(*batches: bytes) -> LogSegment:
    segment = LogSegment(MemoryFiles(), "/data/t-0", 0, index_interval_bytes=4096, create=True, now_ms=0)
    for batch in batches:
        segment.append(batch, parse_header(batch))
    return segment


def batch_at(offset: int, *sizes: int, codec: int = 0) -> bytes:
    records = [NewRecord(1_000, b"k%d" % number, b"v" * size) for number, size in enumerate(sizes)]
    return build_batch(records, base_offset=offset, codec=codec)


def read_all(segment: LogSegment, position: int = 0) -> list[tuple[bytes, bool]]:
    reader, found = BatchReader(segment, position), []
    while (batch := reader.next()) is not None:
        assert batch.header == parse_header(batch.batch)
        found.append((bytes(batch.batch), batch.ends_file))
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([1, 100, READ_BYTES - 100, READ_BYTES, 2 * READ_BYTES]), max_size=8))
def test_batches_of_any_size_come_in_order(sizes: list[int]) -> None:
    written = [batch_at(offset, size) for offset, size in enumerate(sizes)]
    found = read_all(segment_of(*written))
    assert [batch for batch, _ in found] == written
    assert [ends for _, ends in found] == [False] * (len(written) - 1) + [True] * bool(written)


def test_reading_can_begin_at_any_batch() -> None:
    written = [batch_at(offset, 10) for offset in range(3)]
    assert [batch for batch, _ in read_all(segment_of(*written), len(written[0]))] == written[1:]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[:-1], id="the last batch is not all there"),
        pytest.param(lambda data: data + b"\0" * 10, id="half a header follows"),
        pytest.param(lambda data: data + b"\0" * 100, id="no header follows"),
        pytest.param(lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], id="a bit is wrong"),
    ],
)
def test_damage_is_an_error(damage) -> None:
    segment = segment_of(batch_at(0, 10), batch_at(1, 10))
    data = damage(segment.file.read(0, segment.size))
    segment.file.truncate(0)
    segment.file.append(data)
    with pytest.raises(CorruptLog):
        read_all(segment)


def test_a_wrong_checksum_is_noted_as_a_hole() -> None:
    segment = segment_of(batch_at(0, 10), batch_at(1, 10))
    data = bytearray(segment.file.read(0, segment.size))
    data[-5] ^= 1
    segment.file.truncate(0)
    segment.file.append(data)
    with pytest.raises(CorruptLog):
        read_all(segment)
    assert [hole.base_offset for hole in segment.holes] == [1]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("count", [1, RECORDS_PER_SLICE, RECORDS_PER_SLICE + 1])
def test_records_come_in_slices(codec: int, count: int) -> None:
    batch = memoryview(batch_at(0, *([1] * count), codec=codec))
    header = parse_header(batch)
    slices = list(records_in_slices(run_through(plain_records(batch, header)), header))
    assert [record[0] for records in slices for record in records] == list(range(count))
    assert all(len(records) == RECORDS_PER_SLICE for records in slices[:-1])


def test_records_that_cannot_be_read_are_damage_to_the_log() -> None:
    batch = memoryview(batch_at(0, 10, codec=4))
    header = parse_header(batch)
    with pytest.raises(CorruptLog):
        run_through(plain_records(batch, header._replace(attributes=1)))
    with pytest.raises(CorruptLog):
        list(records_in_slices(b"\xff" * 20, header))
