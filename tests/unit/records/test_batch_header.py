"""The header of a batch: what a Produce may bring, what an append changes, how a buffer is walked."""

import pytest

from headrace.model.errors import (
    CorruptBatch,
    InvalidRecord,
    UnsupportedCompression,
    UnsupportedMessageFormat,
)
from headrace.records.batch import (
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    batch_crc,
    parse_header,
    patch_offset_and_epoch,
    produced_batch,
    walk,
)
from headrace.records.builder import NewRecord, build_batch, sealed
from headrace.records.compression import Codec, decompressed_bytes_limit

MAGIC_AT = 16


def a_batch(count: int = 3, **fields: int) -> bytes:
    return build_batch([NewRecord(1_000 + n, b"k%d" % n, b"v%d" % n) for n in range(count)], **fields)


def test_header_carries_every_field_of_the_batch():
    batch = a_batch(base_offset=7, producer_id=11, producer_epoch=2, base_sequence=40, leader_epoch=5, codec=1)
    header = parse_header(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (7, 9, 10)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 2, 40)
    assert (header.leader_epoch, header.magic, header.codec, header.record_count) == (5, 2, 1, 3)
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_002)
    assert header.total_bytes == len(batch)
    assert header.crc == batch_crc(batch)


def test_last_sequence_wraps_from_the_largest_int32_to_zero():
    header = parse_header(a_batch(count=3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 0


def test_last_sequence_of_a_batch_without_sequence_is_none_either():
    assert parse_header(a_batch()).last_sequence == -1


def test_an_append_patches_offset_and_epoch_without_touching_the_checksum():
    batch = bytearray(a_batch())
    patch_offset_and_epoch(memoryview(batch), 1_234, 56)
    header = parse_header(batch)
    assert (header.base_offset, header.leader_epoch) == (1_234, 56)
    assert produced_batch(memoryview(batch)) == header


def test_rule_26_formats_v0_and_v1_are_named_unsupported():
    for magic in (0, 1):
        batch = bytearray(a_batch())
        batch[MAGIC_AT] = magic
        with pytest.raises(UnsupportedMessageFormat):
            produced_batch(memoryview(batch))


def test_rule_26_an_unknown_format_is_corrupt():
    batch = bytearray(a_batch())
    batch[MAGIC_AT] = 3
    with pytest.raises(CorruptBatch):
        produced_batch(memoryview(batch))


@pytest.mark.parametrize("size", [0, 1, MAGIC_AT, MAGIC_AT + 1, HEADER_BYTES - 1, HEADER_BYTES])
def test_rule_27_a_batch_cut_short_is_corrupt(size: int):
    with pytest.raises(CorruptBatch):
        produced_batch(memoryview(a_batch())[:size])


def test_rule_27_any_flipped_byte_behind_the_checksum_is_corrupt():
    batch = a_batch()
    for position in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x40
        with pytest.raises(CorruptBatch):
            produced_batch(memoryview(damaged))


def test_rule_27_two_batches_in_one_produce_are_refused():
    with pytest.raises(InvalidRecord):
        produced_batch(memoryview(a_batch() + a_batch()))


def test_rule_27_a_control_batch_from_a_client_is_refused():
    with pytest.raises(InvalidRecord):
        produced_batch(memoryview(build_batch([NewRecord(0, b"\0\0\0\1", b"")], control=True)))


@pytest.mark.parametrize(("count", "last_delta"), [(3, 3), (3, 1), (0, 2), (-1, -2), (0, -1)])
def test_rule_27_the_last_offset_delta_is_one_less_than_the_count(count: int, last_delta: int):
    batch = a_batch()
    header = parse_header(batch)._replace(record_count=count, last_offset_delta=last_delta)
    with pytest.raises(InvalidRecord):
        produced_batch(memoryview(sealed(header, batch[HEADER_BYTES:])))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_rule_27_a_codec_that_no_reader_knows_is_refused(codec: int):
    batch = a_batch()
    header = parse_header(batch)._replace(attributes=codec)
    with pytest.raises(UnsupportedCompression):
        produced_batch(memoryview(sealed(header, batch[HEADER_BYTES:])))


def counted(batch: bytes, count: int) -> memoryview:
    """The batch with another record count in its header, and a valid checksum."""
    header = parse_header(batch)._replace(record_count=count, last_offset_delta=count - 1)
    return memoryview(sealed(header, batch[HEADER_BYTES:]))


def test_rule_27_smallest_records_are_accepted():
    batch = build_batch([NewRecord(1_000, None, None)] * 64)
    assert len(batch) == HEADER_BYTES + 64 * RECORD_BYTES_MIN
    assert produced_batch(memoryview(batch)).record_count == 64
    assert produced_batch(memoryview(a_batch(codec=Codec.ZSTD, count=10_000))).record_count == 10_000


@pytest.mark.parametrize("count", [65, 2**31 - 1])
def test_rule_27_more_records_than_bytes_can_hold_are_rejected(count: int):
    batch = build_batch([NewRecord(1_000, None, None)] * 64)
    with pytest.raises(InvalidRecord, match="invalid number of records"):
        produced_batch(counted(batch, count))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_rule_27_more_records_than_decompression_returns_are_rejected(codec: Codec):
    batch = a_batch(codec=codec)
    limit = decompressed_bytes_limit(len(batch) - HEADER_BYTES) // RECORD_BYTES_MIN
    assert produced_batch(counted(batch, limit)).record_count == limit
    for count in (limit + 1, 2**31 - 1):
        with pytest.raises(InvalidRecord, match="invalid number of records"):
            produced_batch(counted(batch, count))


def test_rule_27_a_producer_id_comes_with_a_sequence():
    with pytest.raises(InvalidRecord):
        produced_batch(memoryview(a_batch(producer_id=4, producer_epoch=0)))


@pytest.mark.parametrize("producer_id", [-1, -2, -(2**63)])
def test_transactional_batch_without_producer_id_is_rejected(producer_id: int):
    """No marker could end its transaction."""
    batch = a_batch(producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
    with pytest.raises(InvalidRecord, match="producer id"):
        produced_batch(memoryview(batch))


def test_walk_finds_each_whole_batch_and_stops_before_a_partial_one():
    batches = [a_batch(count) for count in (1, 2, 3)]
    buffer = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    assert [position for position, _ in walk(buffer)] == starts
    assert [position for position, _ in walk(buffer[:-1])] == starts[:-1]
    assert [header.record_count for _, header in walk(memoryview(buffer))] == [1, 2, 3]


def test_walk_never_stands_still_on_a_length_that_lies():
    batch = bytearray(a_batch())
    batch[8:12] = (-12).to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatch):
        list(walk(bytes(batch)))
