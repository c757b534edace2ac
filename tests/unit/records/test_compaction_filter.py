"""Compaction of one batch: what goes, what stays as it was, and the delete horizon of KIP-534."""

import pytest

from headrace.records.batch import HEADER_BYTES, batch_crc, parse_header
from headrace.records.builder import NewRecord, build_batch, with_log_append_time
from headrace.records.compaction_filter import filter_batch
from headrace.records.compression import Codec
from headrace.records.control import ControlType, EndMarker, build_marker_batch, read_marker
from headrace.records.record import decode_records, record_spans

RECORDS = [
    NewRecord(1_000, b"a", b"1", (("h", None),)),
    NewRecord(1_900, b"b", b"2"),
    NewRecord(1_200, b"a", None),
    NewRecord(1_300, b"c", b"x" * 500),
]


def a_batch(codec: int = Codec.NONE) -> bytes:
    return build_batch(
        RECORDS,
        base_offset=40,
        codec=codec,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        leader_epoch=2,
        transactional=True,
    )


def everything(offset: int, key: bytes | None, is_tombstone: bool) -> bool:
    return True


def nothing(offset: int, key: bytes | None, is_tombstone: bool) -> bool:
    return False


def only(*offsets: int):
    return lambda offset, key, is_tombstone: offset in offsets


def test_the_caller_is_asked_with_offset_key_and_tombstone():
    asked = []
    filter_batch(a_batch(), None, lambda *facts: bool(asked.append(facts)), delete_horizon_ms=None)
    assert asked == [(40, b"a", False), (41, b"b", False), (42, b"a", True), (43, b"c", False)]


@pytest.mark.parametrize("codec", list(Codec))
def test_keeping_everything_gives_the_very_same_bytes(codec: Codec):
    batch = a_batch(codec)
    assert filter_batch(batch, None, everything, delete_horizon_ms=None) == batch


@pytest.mark.parametrize("codec", list(Codec))
def test_kept_records_keep_offset_time_headers_and_their_producers_place(codec: Codec):
    batch = a_batch(codec)
    before = parse_header(batch)
    filtered = filter_batch(batch, before, only(40, 43), delete_horizon_ms=None)
    assert filtered is not None
    header = parse_header(filtered)
    originals = decode_records(batch)
    assert decode_records(filtered) == [originals[0], originals[3]]
    assert header.crc == batch_crc(filtered)
    assert header == before._replace(length=header.length, crc=header.crc, record_count=2, max_timestamp=1_300), (
        "base offset, last offset delta, sequence, codec and flags stay"
    )


def test_kept_records_are_copied_byte_for_byte():
    spans = [span.raw for span in record_spans(a_batch())]
    filtered = filter_batch(a_batch(), None, only(41, 43), delete_horizon_ms=None)
    assert filtered is not None
    assert filtered[HEADER_BYTES:] == spans[1] + spans[3]


def test_nothing_kept_is_no_batch():
    assert filter_batch(a_batch(), None, nothing, delete_horizon_ms=5_000) is None


def test_the_last_batch_of_a_producer_stays_as_a_header():
    batch = a_batch(Codec.ZSTD)
    before = parse_header(batch)
    empty = filter_batch(batch, before, nothing, delete_horizon_ms=5_000, keep_empty=True)
    assert empty is not None
    header = parse_header(empty)
    assert len(empty) == HEADER_BYTES
    assert header.crc == batch_crc(empty)
    assert (header.record_count, header.codec, header.base_timestamp) == (0, Codec.NONE, -1)
    assert (header.base_offset, header.last_offset, header.max_timestamp) == (40, 43, 1_900)
    assert (header.producer_id, header.producer_epoch, header.last_sequence) == (7, 3, 14)
    assert header.is_transactional
    assert decode_records(empty) == []


def test_an_empty_batch_can_be_filtered_again():
    empty = filter_batch(a_batch(), None, nothing, delete_horizon_ms=None, keep_empty=True)
    assert empty is not None
    assert filter_batch(empty, None, everything, delete_horizon_ms=9, keep_empty=True) == empty
    assert filter_batch(empty, None, everything, delete_horizon_ms=9) is None


@pytest.mark.parametrize("codec", list(Codec))
def test_a_kept_tombstone_gives_its_batch_a_delete_horizon(codec: Codec):
    batch = a_batch(codec)
    filtered = filter_batch(batch, None, only(40, 42), delete_horizon_ms=9_000_000)
    assert filtered is not None
    header = parse_header(filtered)
    assert header.has_delete_horizon
    assert header.base_timestamp == 9_000_000
    originals = decode_records(batch)
    assert decode_records(filtered) == [originals[0], originals[2]], "timestamps do not move"


def test_a_delete_horizon_is_set_even_if_every_record_stays():
    filtered = filter_batch(a_batch(), None, everything, delete_horizon_ms=9_000_000)
    assert filtered is not None
    assert parse_header(filtered).has_delete_horizon
    assert decode_records(filtered) == decode_records(a_batch())


def test_a_delete_horizon_once_set_is_never_moved():
    once = filter_batch(a_batch(), None, everything, delete_horizon_ms=9_000)
    assert once is not None
    assert filter_batch(once, None, everything, delete_horizon_ms=10_000) == once
    twice = filter_batch(once, None, only(42), delete_horizon_ms=10_000)
    assert twice is not None
    header = parse_header(twice)
    assert (header.has_delete_horizon, header.base_timestamp) == (True, 9_000)
    assert decode_records(twice) == [decode_records(a_batch())[2]]


def test_a_batch_without_tombstones_needs_no_horizon():
    filtered = filter_batch(a_batch(), None, only(40, 41), delete_horizon_ms=9_000)
    assert filtered is not None
    header = parse_header(filtered)
    assert (header.has_delete_horizon, header.base_timestamp) == (False, 1_000)


def test_log_append_time_survives_a_delete_horizon():
    batch = bytearray(a_batch())
    with_log_append_time(batch, 6_000)
    filtered = filter_batch(batch, None, only(42), delete_horizon_ms=9_000)
    assert filtered is not None
    header = parse_header(filtered)
    assert (header.uses_log_append_time, header.max_timestamp, header.base_timestamp) == (True, 6_000, 9_000)
    assert decode_records(filtered)[0].timestamp == 6_000


def test_a_marker_gets_the_horizon_it_is_given_and_stays_a_marker():
    marker = EndMarker(ControlType.COMMIT, 4)
    batch = build_marker_batch(marker, producer_id=1, producer_epoch=0, timestamp=500, base_offset=3)
    assert filter_batch(batch, None, everything, delete_horizon_ms=None) == batch
    stamped = filter_batch(batch, None, everything, delete_horizon_ms=70_000)
    assert stamped is not None
    header = parse_header(stamped)
    assert (header.has_delete_horizon, header.base_timestamp, header.max_timestamp) == (True, 70_000, 500)
    assert read_marker(stamped) == marker


def test_a_horizon_far_from_an_absurd_timestamp_leaves_the_batch_readable():
    batch = build_batch([NewRecord(-(2**63), b"a", None)])
    stamped = filter_batch(batch, None, everything, delete_horizon_ms=2**62)
    assert stamped is not None
    assert decode_records(stamped) == decode_records(batch)
