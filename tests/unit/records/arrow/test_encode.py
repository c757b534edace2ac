"""Sections built from columns hold what building them record by record gives; keys go where Java puts them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.records.arrow.decode import HEADERS_TYPE
from headrace.records.arrow.encode import RecordColumns, build_section, varint_column
from headrace.records.arrow.partitioner import hash_column, murmur2, partitions_of
from headrace.records.batch import HEADER_BYTES, parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.records.varint import encode_varint

blobs = st.one_of(st.none(), st.binary(max_size=300))
headers = st.lists(st.tuples(st.text(max_size=10), blobs), max_size=4).map(tuple)
timestamps = st.integers(-(2**40), 2**41)
new_records = st.lists(st.builds(NewRecord, timestamps, blobs, blobs, headers), min_size=1, max_size=30)
unhurried = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])


def columns_of(records) -> RecordColumns:
    header_rows = [[{"key": key, "value": value} for key, value in record.headers] for record in records]
    return RecordColumns(
        np.array([record.timestamp for record in records], dtype=np.int64),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.array(header_rows, HEADERS_TYPE),
    )


@unhurried
@given(new_records)
def test_sections_are_the_same_bytes(records):
    expected = build_batch(records)
    header = parse_header(expected)
    section, base, newest = build_section(columns_of(records))
    assert section == expected[HEADER_BYTES:]
    assert (base, newest) == (header.base_timestamp, header.max_timestamp)


@unhurried
@given(new_records, st.integers(0, 29), st.integers(1, 30))
def test_slices_and_chosen_rows_too(records, start, length):
    start = start % len(records)
    end = min(start + length, len(records))
    columns = columns_of(records)
    for piece in (columns.slice(start, end), columns.take(np.arange(start, end))):
        assert build_section(piece)[0] == build_batch(records[start:end])[HEADER_BYTES:]
        assert int(piece.sizes().sum()) >= len(build_section(piece)[0]) - 5 * len(piece.values)


def test_keys_and_headers_may_be_missing_altogether():
    columns = RecordColumns(np.array([5, 6]), None, pa.array([b"a", None], pa.binary()), None)
    records = [NewRecord(5, None, b"a"), NewRecord(6, None, None)]
    assert build_section(columns)[0] == build_batch(records)[HEADER_BYTES:]
    null_headers = columns._replace(headers=pa.array([None, []], HEADERS_TYPE))
    assert build_section(null_headers)[0] == build_batch(records)[HEADER_BYTES:]


@unhurried
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_varints(numbers):
    column = varint_column([np.array(numbers, dtype=np.int64)])
    assert column.to_pylist() == [encode_varint(number) for number in numbers]


@unhurried
@given(st.lists(st.one_of(st.none(), st.binary(max_size=200)), min_size=1, max_size=30), st.integers(0, 5))
def test_a_column_is_hashed_as_its_keys_are(keys, skipped):
    hashes = hash_column(pa.array([b"x"] * skipped + keys, pa.binary()).slice(skipped))
    assert [int(one) for one, key in zip(hashes, keys, strict=True) if key is not None] == [
        murmur2(key) for key in keys if key is not None
    ]


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_javas(key, signed):
    """The values that the tests of Kafka's own client name."""
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_a_partition_is_never_negative():
    hashes = np.array([0xFFFFFFFF, 0x80000000, 7], dtype=np.uint32)
    assert partitions_of(hashes, 5).tolist() == [0x7FFFFFFF % 5, 0, 2]
