"""Decoding: absolute offsets and times, spans to copy, and every kind of damage as CorruptBatch."""

import tracemalloc

import pytest

from headrace.model.errors import CorruptBatch, MessageTooLarge, UnsupportedCompression
from headrace.records.batch import HEADER_BYTES, BatchHeader, parse_header
from headrace.records.builder import NewRecord, build_batch, sealed, with_log_append_time
from headrace.records.compression import Codec
from headrace.records.record import Record, decode_records, iter_records, record_spans

RECORDS = [
    NewRecord(5_000, b"key", b"value", (("trace", b"1"), ("empty", b""), ("null", None))),
    NewRecord(4_990, None, b"no key"),
    NewRecord(5_100, b"gone", None),
    NewRecord(5_100, b"", b"", (("ünï", "cödé".encode()),)),
    NewRecord(9_000, b"k" * 200, b"v" * 20_000),
]


def with_section(section: bytes, **fields: int) -> bytes:
    """A batch around hand-written records."""
    header = parse_header(build_batch([NewRecord(0, None, None)]))
    return sealed(header._replace(**fields), section)


def a_record(*fields: int | bytes) -> bytes:
    body = b"".join(bytes((field,)) if isinstance(field, int) else field for field in fields)
    return bytes((len(body) * 2,)) + body


PLAIN = a_record(0, 0, 0, 1, 1, 0)  # attributes, both deltas, null key, null value, no headers


@pytest.mark.parametrize("codec", list(Codec))
def test_records_come_back_with_absolute_offsets_and_timestamps(codec: Codec):
    batch = build_batch(RECORDS, base_offset=100, codec=codec)
    assert decode_records(batch) == [
        Record(100 + index, *record[:3], tuple(record.headers)) for index, record in enumerate(RECORDS)
    ]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_decoded_into_bytes(kind: type):
    records = decode_records(kind(build_batch(RECORDS)))
    assert all(type(record.value) is bytes for record in records if record.value is not None)


def test_the_header_in_hand_decides_the_offsets():
    batch = build_batch(RECORDS)
    header = parse_header(batch)._replace(base_offset=1_000)
    assert [record.offset for record in decode_records(batch, header)] == list(range(1_000, 1_005))


def test_log_append_time_is_the_time_of_every_record():
    batch = bytearray(build_batch(RECORDS))
    with_log_append_time(batch, 77_000)
    assert {record.timestamp for record in decode_records(batch)} == {77_000}


def test_records_come_one_at_a_time_until_the_damaged_one():
    batch = with_section(PLAIN + a_record(0, 0, 2, 1, 1, 1), record_count=2, last_offset_delta=1)
    records = iter_records(batch)
    assert next(records).offset == 0
    with pytest.raises(CorruptBatch):
        next(records)


def test_spans_put_end_to_end_are_the_section_again():
    batch = build_batch(RECORDS, base_offset=50)
    spans = list(record_spans(batch))
    assert b"".join(span.raw for span in spans) == batch[HEADER_BYTES:]
    assert [(span.offset, span.timestamp, span.key) for span in spans] == [
        (50 + index, record.timestamp, record.key) for index, record in enumerate(RECORDS)
    ]
    assert [span.is_tombstone for span in spans] == [False, False, True, False, False]


def test_a_batch_that_compaction_emptied_has_no_records():
    assert decode_records(with_section(b"", record_count=0, last_offset_delta=4)) == []


def test_gaps_that_compaction_left_in_the_offsets_are_kept():
    section = a_record(0, 0, 2, 1, 1, 0) + a_record(0, 0, 8, 1, 1, 0)
    batch = with_section(section, record_count=2, last_offset_delta=9, base_offset=10)
    assert [record.offset for record in decode_records(batch)] == [11, 14]


def test_record_attributes_mean_nothing_yet():
    assert decode_records(with_section(a_record(0xFF, 0, 0, 1, 1, 0))) == [Record(0, 0, None, None)]


def test_a_header_name_that_is_not_utf_8_does_not_spoil_its_neighbours():
    section = a_record(0, 0, 0, 1, 1, 2, 2, 0xFF, 1)
    assert decode_records(with_section(section))[0].headers == (("\ufffd", None),)


def test_timestamps_wrap_as_in_java():
    batch = with_section(a_record(0, 2, 0, 1, 1, 0), base_timestamp=2**63 - 1)
    assert decode_records(batch)[0].timestamp == -(2**63)


DAMAGED = {
    "nothing where a record should be": b"",
    "a record that is cut short": PLAIN[:-1],
    "a byte behind the last record": PLAIN + b"\x00",
    "one record more than the count": PLAIN + PLAIN,
    "a negative length": b"\x01" + PLAIN[1:],
    "a length beyond the data": b"\x7e" + PLAIN[1:],
    "a length longer than the record": b"\x0e" + PLAIN[1:] + b"\x00",
    "a length shorter than the record": b"\x0a" + PLAIN[1:] + b"\x00",
    "a length of eleven bytes": b"\x80" * 10 + b"\x00" + PLAIN[1:],
    "an offset delta below zero": a_record(0, 0, 1, 1, 1, 0),
    "an offset delta beyond the last": a_record(0, 0, 2, 1, 1, 0),
    "a key of -2 bytes": a_record(0, 0, 0, 3, 1, 0),
    "a value of -2 bytes": a_record(0, 0, 0, 1, 3, 0),
    "a key beyond the record": a_record(0, 0, 0, 40, 1, 0),
    "a value beyond the record": a_record(0, 0, 0, 1, 40, 0),
    "a value up to the very end": a_record(0, 0, 0, 1, 2, 0),
    "no header count": a_record(0, 0, 0, 1, 1) + b"\x00",
    "-1 headers": a_record(0, 0, 0, 1, 1, 1),
    "a header too few": a_record(0, 0, 0, 1, 1, 4, 0, 1),
    "a header too many": a_record(0, 0, 0, 1, 1, 0, 0, 1),
    "a header without a key": a_record(0, 0, 0, 1, 1, 2, 1, 1),
    "a header value of -2 bytes": a_record(0, 0, 0, 1, 1, 2, 0, 3),
    "a header value beyond the record": a_record(0, 0, 0, 1, 1, 2, 0, 60),
    "a million headers": a_record(0, 0, 0, 1, 1, b"\x80\x89\x7a"),
}


@pytest.mark.parametrize("damage", list(DAMAGED))
def test_damage_is_corrupt(damage: str):
    with pytest.raises(CorruptBatch):
        decode_records(with_section(DAMAGED[damage]))


def test_offsets_that_do_not_grow_are_corrupt():
    with pytest.raises(CorruptBatch):
        decode_records(with_section(PLAIN + PLAIN, record_count=2, last_offset_delta=1))


@pytest.mark.parametrize("count", [-(2**31), -1, 2, 2**31 - 1])
def test_a_count_that_lies_is_corrupt_and_costs_nothing(count: int):
    batch = with_section(PLAIN, record_count=count, last_offset_delta=2**31 - 1)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decode_records(batch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("codec", list(Codec))
def test_every_truncation_of_a_batch_is_corrupt(codec: Codec):
    batch = build_batch(RECORDS[:4], codec=codec)
    for size in range(len(batch)):
        with pytest.raises(CorruptBatch):
            decode_records(batch[:size])


def test_bytes_behind_the_batch_are_corrupt():
    with pytest.raises(CorruptBatch):
        decode_records(build_batch(RECORDS) + b"\x00")


def test_another_format_is_corrupt():
    batch = bytearray(build_batch(RECORDS))
    batch[16] = 1
    with pytest.raises(CorruptBatch):
        decode_records(batch)


def test_an_unknown_codec_is_unsupported():
    with pytest.raises(UnsupportedCompression):
        decode_records(with_section(PLAIN, attributes=5))


def test_the_cap_of_the_caller_holds():
    batch = build_batch(RECORDS, codec=Codec.ZSTD)
    with pytest.raises(MessageTooLarge):
        decode_records(batch, bytes_max=10_000)


def test_memory_stays_in_proportion_to_the_records():
    header: BatchHeader = parse_header(build_batch([NewRecord(0, None, None)] * 20_000))
    batch = build_batch([NewRecord(0, None, None)] * 20_000)
    tracemalloc.start()
    try:
        for _ in iter_records(batch, header):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(batch)
