"""Building: known bytes, right checksums, other codecs, the broker's clock."""

import pytest

from headrace.model.errors import CorruptBatch
from headrace.records.batch import batch_crc, parse_header, produced_batch
from headrace.records.builder import NewRecord, build_batch, recompress, with_log_append_time
from headrace.records.compression import Codec
from headrace.records.record import decode_records

RECORDS = [NewRecord(1_000 + n, b"k%d" % n, b"v" * n, (("h", b"x"),)) for n in range(300)]


# What an Apache Kafka broker stored for one record "123" without a key.
FROM_KAFKA = bytes.fromhex(
    "0000000000000000 0000003b 00000001 02 0318a270"  # base offset, length, leader epoch, magic, crc
    "0000 00000000 0000015dff7b063c 0000015dff7b063c"  # attributes, last delta, base and max timestamp
    "ffffffffffffffff ffff ffffffff 00000001"  # producer id, epoch, base sequence, records
    "12 00 00 00 01 06 313233 00"  # length, attributes, deltas, null key, value, no headers
)


def test_a_batch_has_exactly_the_bytes_that_kafka_stores():
    assert build_batch([NewRecord(1_503_229_838_908, None, b"123")], leader_epoch=1) == FROM_KAFKA


def test_every_field_of_a_record_has_its_bytes():
    records = [NewRecord(10, b"k", b"v", (("h", b"1"), ("n", None))), NewRecord(9, None, None)]
    assert build_batch(records)[61:] == bytes.fromhex(
        "1e 00 00 00 02 6b 02 76 04 02 68 02 31 02 6e 01"  # k, v, h=1, n=null
        "0c 00 01 02 01 01 00"  # one millisecond earlier, null, null, no headers
    )


@pytest.mark.parametrize("codec", list(Codec))
def test_what_is_built_passes_for_a_produce(codec: Codec):
    header = produced_batch(memoryview(build_batch(RECORDS, codec=codec)))
    assert (header.codec, header.record_count, header.last_offset_delta) == (codec, 300, 299)


def test_flags_stand_in_the_attributes():
    header = parse_header(build_batch(RECORDS, transactional=True, log_append_time=True, codec=Codec.LZ4))
    assert header.is_transactional
    assert header.uses_log_append_time
    assert not header.is_control
    assert not header.has_delete_horizon
    assert header.codec == Codec.LZ4


def test_the_first_timestamp_is_the_base_and_the_highest_the_maximum():
    header = parse_header(build_batch([NewRecord(t, None, None) for t in (50, 20, 90, 70)]))
    assert (header.base_timestamp, header.max_timestamp) == (50, 90)


def test_timestamps_at_both_ends_of_their_range_come_back():
    times = [-(2**63), 2**63 - 1, -1, 0]
    records = decode_records(build_batch([NewRecord(t, None, None) for t in times]))
    assert [record.timestamp for record in records] == times


@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("target", list(Codec))
def test_recompressing_changes_the_codec_and_nothing_else(source: Codec, target: Codec):
    batch = build_batch(
        RECORDS,
        base_offset=9,
        codec=source,
        producer_id=4,
        producer_epoch=1,
        base_sequence=8,
        transactional=True,
    )
    header = parse_header(batch)
    other = recompress(batch, header, target)
    after = parse_header(other)
    assert after.crc == batch_crc(other)
    assert after == header._replace(attributes=after.attributes, length=after.length, crc=after.crc), (
        "only these may differ"
    )
    assert (after.codec, after.is_transactional) == (target, True)
    assert decode_records(other) == decode_records(batch)


def test_recompressing_to_the_same_codec_keeps_the_clients_bytes():
    batch = build_batch(RECORDS, codec=Codec.ZSTD, level=9)
    assert recompress(batch, None, Codec.ZSTD) == batch


def test_recompressing_damaged_data_is_corrupt():
    batch = bytearray(build_batch(RECORDS, codec=Codec.GZIP))
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        recompress(batch, None, Codec.NONE)


@pytest.mark.parametrize("kind", [bytearray, lambda batch: memoryview(bytearray(batch))])
def test_rule_27_log_append_time_is_stamped_in_place_with_a_new_checksum(kind):
    before = build_batch(RECORDS, codec=Codec.SNAPPY)
    batch = kind(before)
    with_log_append_time(batch, 123_456)
    header = produced_batch(memoryview(batch))
    assert header.uses_log_append_time
    assert header.max_timestamp == 123_456
    assert header.base_timestamp == parse_header(before).base_timestamp
    assert bytes(batch[61:]) == before[61:]
