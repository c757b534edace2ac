"""For any records: they come back. For any bytes: only the errors that are promised come out."""

from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.errors import CorruptBatch, MessageTooLarge, UnsupportedCompression
from headrace.records.batch import HEADER_BYTES, BatchHeader, batch_crc, parse_header
from headrace.records.batch_queries import first_at_or_after, key_errors, max_timestamp_record
from headrace.records.builder import NewRecord, build_batch, recompress, sealed
from headrace.records.compaction_filter import filter_batch
from headrace.records.compression import MIB, Codec, compress, decompress
from headrace.records.control import read_marker
from headrace.records.record import Record, decode_records, record_spans

int64 = st.integers(-(2**63), 2**63 - 1)
timestamps = st.one_of(st.integers(0, 2**41), int64)
blobs = st.one_of(st.none(), st.binary(max_size=300))
headers = st.lists(st.tuples(st.text(max_size=10), blobs), max_size=4).map(tuple)
new_records = st.lists(st.builds(NewRecord, timestamps, blobs, blobs, headers), min_size=1, max_size=30)
codecs = st.sampled_from(list(Codec))
offsets = st.integers(0, 2**62)

# Deadlines and slow drawing say more about a busy machine than about the code.
unhurried = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])

PROMISED = (CorruptBatch, MessageTooLarge, UnsupportedCompression)


@unhurried
@given(new_records, codecs, offsets)
def test_any_records_come_back(records, codec, base_offset):
    batch = build_batch(records, base_offset=base_offset, codec=codec)
    assert decode_records(batch) == [
        Record(base_offset + n, record.timestamp, record.key, record.value, record.headers)
        for n, record in enumerate(records)
    ]


@unhurried
@given(new_records, codecs, codecs)
def test_any_records_survive_a_change_of_codec(records, source, target):
    batch = build_batch(records, codec=source)
    assert decode_records(recompress(batch, None, target)) == decode_records(batch)


@unhurried
@given(new_records, codecs, st.sets(st.integers(0, 29)), st.one_of(st.none(), int64))
def test_compaction_removes_exactly_what_it_is_told_to(records, codec, wanted, horizon_ms):
    batch = build_batch(records, base_offset=100, codec=codec)
    filtered = filter_batch(
        batch, None, lambda offset, key, is_tombstone: offset - 100 in wanted, delete_horizon_ms=horizon_ms
    )
    expected = [record for record in decode_records(batch) if record.offset - 100 in wanted]
    if filtered is None:
        assert expected == []
    else:
        header = parse_header(filtered)
        assert decode_records(filtered) == expected
        assert header.max_timestamp == max(record.timestamp for record in expected)
        assert header.last_offset == parse_header(batch).last_offset
        assert header.crc == batch_crc(filtered)


@unhurried
@given(new_records, codecs, timestamps)
def test_lookups_agree_with_the_records(records, codec, timestamp):
    batch = build_batch(records, codec=codec)
    decoded = decode_records(batch)
    at_or_after = [(record.offset, record.timestamp) for record in decoded if record.timestamp >= timestamp]
    assert first_at_or_after(batch, None, timestamp) == (at_or_after[0] if at_or_after else None)
    newest = max(decoded, key=lambda record: (record.timestamp, -record.offset))
    assert max_timestamp_record(batch) == (newest.offset, newest.timestamp)
    assert [index for index, _ in key_errors(batch)] == [n for n, r in enumerate(records) if r.key is None]


def exercise(batch: bytes) -> None:
    """Every reader of a batch, each allowed the promised errors only."""
    for read in (
        decode_records,
        key_errors,
        max_timestamp_record,
        read_marker,
        lambda batch: list(record_spans(batch)),
        lambda batch: first_at_or_after(batch, None, 1_000),
        lambda batch: recompress(batch, None, Codec.NONE),
        lambda batch: filter_batch(batch, None, lambda offset, *_: offset % 2 == 0, delete_horizon_ms=7),
    ):
        with suppress(*PROMISED):
            read(batch)


@unhurried
@given(st.binary(max_size=400))
def test_any_bytes_are_a_batch_or_a_promised_error(data):
    exercise(data)


@unhurried
@given(
    st.binary(max_size=400),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-1, 50),
    int64,
)
def test_any_section_behind_a_true_header_is_read_or_a_promised_error(
    section, attributes, last_delta, count, base_timestamp
):
    header = BatchHeader(0, 0, 0, 2, 0, attributes, last_delta, base_timestamp, 5, -1, -1, -1, count)
    exercise(sealed(header, section))


@unhurried
@given(new_records, codecs, st.data())
def test_a_batch_with_some_bytes_changed_is_read_or_a_promised_error(records, codec, data):
    batch = bytearray(build_batch(records, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(HEADER_BYTES, len(batch) - 1))] = data.draw(st.integers(0, 255))
    exercise(bytes(batch))


@unhurried
@given(st.integers(-1, 8), st.binary(max_size=500))
def test_any_bytes_decompress_or_give_a_promised_error(codec, data):
    with suppress(*PROMISED):
        assert len(decompress(codec, data, bytes_max=MIB)) <= MIB


@unhurried
@given(codecs, st.binary(min_size=1, max_size=2_000), st.data())
def test_changed_compressed_bytes_decompress_or_give_a_promised_error(codec, plain, data):
    packed = bytearray(compress(codec, plain))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(*PROMISED):
        assert len(decompress(codec, packed, bytes_max=4_000)) <= 4_000
