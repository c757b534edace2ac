"""Questions to one batch: missing keys, the first record at a time, the newest record."""

import pytest

from headrace.model.errors import CorruptBatch
from headrace.records.batch import parse_header
from headrace.records.batch_queries import (
    RECORD_ERRORS_MAX,
    first_at_or_after,
    key_errors,
    max_timestamp_record,
    older_than,
)
from headrace.records.builder import NewRecord, build_batch, sealed, with_log_append_time
from headrace.records.compaction_filter import filter_batch
from headrace.records.compression import Codec

TIMES = (100, 300, 200, 300, 50)


def a_batch(codec: int = Codec.NONE) -> bytes:
    return build_batch([NewRecord(time, b"k", b"v") for time in TIMES], base_offset=20, codec=codec)


def emptied() -> bytes:
    empty = filter_batch(a_batch(), None, lambda *_: False, delete_horizon_ms=None, keep_empty=True)
    assert empty is not None
    return empty


@pytest.mark.parametrize("codec", list(Codec))
def test_rule_27_records_without_a_key_are_named_by_their_index(codec: Codec):
    keys = (b"a", None, b"", None)
    batch = build_batch([NewRecord(0, key, b"v") for key in keys], base_offset=9, codec=codec)
    errors = key_errors(batch, parse_header(batch))
    assert [index for index, _ in errors] == [1, 3]
    assert all("key" in message for _, message in errors)


def test_a_batch_with_all_its_keys_has_no_errors():
    assert key_errors(a_batch()) == ()


def test_a_flood_of_missing_keys_is_cut_but_still_read_to_the_end():
    records = [NewRecord(0, None, b"")] * (RECORD_ERRORS_MAX + 5)
    batch = build_batch(records)
    assert len(key_errors(batch)) == RECORD_ERRORS_MAX
    damaged = sealed(parse_header(batch), batch[61:] + b"\x00")
    with pytest.raises(CorruptBatch):
        key_errors(damaged)


@pytest.mark.parametrize("codec", list(Codec))
def test_records_from_before_a_time_are_named_by_index_and_timestamp(codec: Codec):
    assert older_than(a_batch(codec), None, 200) == ((0, 100), (4, 50))
    assert older_than(a_batch(codec), None, 50) == ()
    assert len(older_than(build_batch([NewRecord(1, None, None)] * 2_000), None, 2)) == RECORD_ERRORS_MAX


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    ("timestamp", "found"),
    [(0, (20, 100)), (100, (20, 100)), (101, (21, 300)), (300, (21, 300)), (301, None), (-1, (20, 100))],
)
def test_rule_28_the_first_record_not_older_than_a_time(codec, timestamp, found):
    assert first_at_or_after(a_batch(codec), None, timestamp) == found


def test_rule_28_records_before_the_logs_start_are_not_found():
    assert first_at_or_after(a_batch(), None, 100, from_offset=22) == (22, 200)
    assert first_at_or_after(a_batch(), None, 300, from_offset=24) is None


@pytest.mark.parametrize("codec", list(Codec))
def test_rule_28_the_newest_record_is_the_first_of_equals(codec: Codec):
    assert max_timestamp_record(a_batch(codec)) == (21, 300)


def test_rule_28_records_without_timestamps_are_all_equally_old():
    batch = build_batch([NewRecord(-1, None, b"v")] * 3, base_offset=4)
    assert max_timestamp_record(batch) == (4, -1)


def test_rule_28_log_append_time_makes_the_first_record_the_answer():
    batch = bytearray(a_batch())
    with_log_append_time(batch, 900)
    assert max_timestamp_record(batch) == (20, 900)
    assert first_at_or_after(batch, None, 900) == (20, 900)
    assert first_at_or_after(batch, None, 901) is None


def test_an_emptied_batch_answers_none():
    assert max_timestamp_record(emptied()) is None
    assert first_at_or_after(emptied(), None, 0) is None
    assert key_errors(emptied()) == ()
