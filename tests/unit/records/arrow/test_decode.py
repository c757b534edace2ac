"""Batches as Arrow columns hold exactly what reading them record by record gives."""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.model.errors import CorruptBatch
from headrace.records.arrow.decode import GROUP_BYTES_MAX, HEADERS_TYPE, decode_columns, decode_groups, grouped
from headrace.records.batch import HEADER_BYTES, batch_crc, parse_header
from headrace.records.builder import NewRecord, build_batch, sealed
from headrace.records.compaction_filter import filter_batch
from headrace.records.compression import Codec, compress
from headrace.records.record import Record, decode_records

ALL = ("key", "value", "offset", "timestamp", "timestampType", "headers")

blobs = st.one_of(st.none(), st.binary(max_size=300))
headers = st.lists(st.tuples(st.text(max_size=10), blobs), max_size=4).map(tuple)
timestamps = st.integers(-(2**40), 2**41)
new_records = st.lists(st.builds(NewRecord, timestamps, blobs, blobs, headers), min_size=1, max_size=30)
codecs = st.sampled_from(list(Codec))
unhurried = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])


def columns_of(*batches: bytes, wanted=ALL):
    return decode_columns([(memoryview(batch), parse_header(batch)) for batch in batches], wanted)


def records_in(columns) -> list[Record]:
    arrays = columns.arrays
    rows = zip(
        arrays["offset"].to_pylist(),
        arrays["timestamp"].cast(pa.int64()).to_pylist(),
        arrays["key"].to_pylist(),
        arrays["value"].to_pylist(),
        arrays["headers"].to_pylist(),
        strict=True,
    )
    return [
        Record(offset, us // 1000, key, value, tuple((header["key"], header["value"]) for header in headers))
        for offset, us, key, value, headers in rows
    ]


@unhurried
@given(st.lists(st.tuples(new_records, codecs), min_size=1, max_size=4), st.integers(0, 2**60))
def test_columns_are_the_records(groups, base_offset):
    batches, offset = [], base_offset
    for records, codec in groups:
        batches.append(build_batch(records, base_offset=offset, codec=codec))
        offset += len(records)
    columns = columns_of(*batches)
    assert records_in(columns) == [record for batch in batches for record in decode_records(batch)]
    assert columns.arrays["headers"].type == HEADERS_TYPE
    assert columns.arrays["headers"].null_count == 0
    for array in columns.arrays.values():
        array.validate(full=True)


@unhurried
@given(new_records, st.sets(st.integers(0, 29)), st.integers(0, 40), st.integers(0, 40))
def test_a_range_is_cut_from_a_compacted_batch(records, kept, first, length):
    batch = filter_batch(
        build_batch(records), None, lambda offset, *_: offset in kept, delete_horizon_ms=None, keep_empty=True
    )
    assert batch is not None
    cut = columns_of(batch).within(first, first + length)
    expected = [record for record in decode_records(batch) if first <= record.offset < first + length]
    assert records_in(cut) == expected


@unhurried
@given(new_records, st.binary(min_size=1, max_size=20), st.integers(0, 10_000))
def test_damaged_records_are_refused_and_never_read_outside(records, damage, at):
    """What reading one by one refuses, reading in columns refuses; what both take is the same."""
    batch = bytearray(build_batch(records))
    position = HEADER_BYTES + at % (len(batch) - HEADER_BYTES)
    batch[position : position + len(damage)] = damage
    header = parse_header(bytes(batch))._replace(length=len(batch) - 12)
    section = bytes(batch[HEADER_BYTES:])
    mended = sealed(header, section)
    try:
        expected = decode_records(mended)
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            columns_of(mended)
    else:
        # A stray byte can make a number that the slower reader wraps and Arrow's microseconds cannot hold.
        found = records_in(columns_of(mended))
        assert [record[2:] for record in found] == [record[2:] for record in expected]


def test_equal_records_take_the_short_way_and_unequal_ones_the_long_one():
    equal = [NewRecord(1000 + n, b"k", b"v" * 100) for n in range(20_000)]
    unequal = [NewRecord(1000, None, b"v" * (n % 300)) for n in range(5_000)]
    mixed = equal[:3000] + unequal + equal[:3000] + [NewRecord(5, b"big", bytes(1_000_000))]
    for records in (equal, unequal, mixed):
        batch = build_batch(records)
        assert records_in(columns_of(batch)) == decode_records(batch)


def test_append_time_goes_to_every_record():
    batch = build_batch([NewRecord(5, None, b"a"), NewRecord(9, None, b"b")], log_append_time=True)
    columns = columns_of(batch)
    assert [record.timestamp for record in records_in(columns)] == [9, 9]
    assert columns.arrays["timestampType"].to_pylist() == [1, 1]


def test_only_what_is_wanted_is_decoded():
    assert set(columns_of(build_batch([NewRecord(5, b"k", b"v")]), wanted=("value",)).arrays) == {"value"}


def test_a_header_name_that_is_not_utf8_is_mended_as_java_does():
    batch = build_batch([NewRecord(5, None, None, (("name", b"x"),))])
    section = batch[HEADER_BYTES:].replace(b"name", b"n\xffme")
    mended = sealed(parse_header(batch), compress(Codec.NONE, section))
    assert records_in(columns_of(mended)) == decode_records(mended)


def test_small_batches_are_decoded_together():
    batches = [build_batch([NewRecord(1, None, b"v")] * 400, base_offset=400 * n) for n in range(10)]
    parts = [(memoryview(batch), parse_header(batch)) for batch in batches]
    assert [len(group) for group in grouped(parts, 1000)] == [2, 2, 2, 2, 2]


def test_groups_are_bounded_by_what_batches_decompress_to():
    """Gigabytes of records fit into a fetch of some kilobytes; Arrow counts the bytes of a column in 32 bits."""
    count, value = 12, bytes(8 * 1024 * 1024)
    batches = [build_batch([NewRecord(1, None, value)], base_offset=n, codec=Codec.ZSTD) for n in range(count)]
    assert sum(map(len, batches)) < GROUP_BYTES_MAX / 100
    groups = list(decode_groups([(memoryview(one), parse_header(one)) for one in batches], ALL, 1000))
    assert [offset for group in groups for offset in group.offsets] == list(range(count))
    assert all(len(group.offsets) * len(value) <= GROUP_BYTES_MAX for group in groups)
    assert all(one == value for group in groups for one in group.arrays["value"].to_pylist())


def test_a_batch_of_which_compaction_left_nothing_has_no_rows():
    batch = filter_batch(
        build_batch([NewRecord(1, b"k", b"v")]), None, lambda *_: False, delete_horizon_ms=None, keep_empty=True
    )
    assert batch is not None
    assert batch_crc(batch) == parse_header(batch).crc
    assert len(columns_of(batch).offsets) == 0
