"""A log gives back what it was given, from any offset, across segments, and says so when it cannot."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import CorruptLog, OffsetOutOfRange
from headrace.records.batch import BatchHeader, parse_header
from headrace.storage import log_read
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.io.stepwise import run_through
from headrace.storage.log import Log
from headrace.storage.timestamp_lookup import offset_at_or_after, offset_of_max_timestamp
from tests.unit.storage.log_kit import CONFIG, append, batch_of, new_log, read_values

SMALL_SEGMENTS = replace(CONFIG, segment_bytes=300)


def test_offsets_follow_each_other_from_zero() -> None:
    log = new_log()
    assert append(log, "a", "b").base_offset == 0
    assert append(log, "c").base_offset == 2
    assert log.log_end_offset == 3


def test_a_read_inside_a_batch_returns_the_whole_batch_rule_06() -> None:
    log = new_log()
    append(log, "a", "b", "c")
    piece = log.read(1, 1_000_000, log.log_end_offset)
    assert piece is not None
    assert piece.length == log.size_bytes


def test_the_first_batch_is_returned_even_if_larger_than_asked_rule_06() -> None:
    log = new_log()
    append(log, "x" * 500)
    append(log, "y" * 500)
    piece = log.read(0, 10, log.log_end_offset)
    assert piece is not None
    assert 500 < piece.length < 1000


def test_a_slice_ends_at_a_batch_boundary() -> None:
    log = new_log()
    sizes = []
    for number in range(50):
        before = log.size_bytes
        append(log, f"value {number}")
        sizes.append(log.size_bytes - before)
    piece = log.read(0, sizes[0] * 10 + 30, log.log_end_offset)
    assert piece is not None
    assert piece.length in {sum(sizes[:count]) for count in range(1, 50)}


def test_nothing_at_or_past_the_limit_is_read() -> None:
    log = new_log()
    append(log, "a")
    append(log, "b")
    assert log.read(1, 1_000, 1) is None
    assert read_values(log, 0, limit=1) == ["a"]


@pytest.mark.parametrize("offset", [-1, 4])
def test_an_offset_outside_the_log_is_out_of_range(offset: int) -> None:
    log = new_log()
    append(log, "a", "b", "c")
    with pytest.raises(OffsetOutOfRange):
        log.read(offset, 1_000, 3)


def test_a_full_segment_is_followed_by_another() -> None:
    log = new_log(config=SMALL_SEGMENTS)
    for number in range(20):
        append(log, f"value {number}")
    assert len(log.segments) > 3
    assert read_values(log) == [f"value {number}" for number in range(20)]
    assert [segment.base_offset for segment in log.segments[1:]] == [one.next_offset for one in log.segments[:-1]]


def test_a_segment_rolls_when_its_records_span_too_much_time() -> None:
    log = new_log(config=replace(CONFIG, segment_ms=1_000))
    append(log, "a", timestamp=0)
    append(log, "b", timestamp=1_000)
    append(log, "c", timestamp=1_001)
    assert len(log.segments) == 2


@given(st.lists(st.lists(st.text(max_size=20), min_size=1, max_size=5), min_size=1, max_size=30), st.data())
def test_every_offset_is_found_again(batches: list[list[str]], data: st.DataObject) -> None:
    log = new_log(config=SMALL_SEGMENTS)
    values: list[str] = []
    for batch in batches:
        append(log, *batch)
        values += batch
    offset = data.draw(st.integers(0, len(values)))
    assert read_values(log, offset) == values[offset:]


def test_the_first_record_at_or_after_a_time_is_found() -> None:
    log = new_log(config=SMALL_SEGMENTS)
    for number in range(30):
        append(log, "x", "y", timestamp=number * 100)
    found = run_through(offset_at_or_after(log, 1_501))
    assert found is not None
    assert (found.offset, found.timestamp) == (31, 1_501)
    assert run_through(offset_at_or_after(log, 99_999)) is None


def test_times_that_run_backwards_still_find_the_first_offset_that_is_young_enough() -> None:
    log = new_log()
    for timestamp in (500, 100, 400, 600, 200):
        append(log, "x", timestamp=timestamp)
    found = run_through(offset_at_or_after(log, 450))
    assert found is not None
    assert found.offset == 0
    newest = run_through(offset_of_max_timestamp(log))
    assert newest is not None
    assert (newest.offset, newest.timestamp) == (3, 600)


def test_a_repeated_batch_of_an_idempotent_producer_is_written_once() -> None:
    log = new_log()
    first = append(log, "a", "b", producer_id=7, producer_epoch=0, base_sequence=0)
    again = append(log, "a", "b", producer_id=7, producer_epoch=0, base_sequence=0)
    assert (again.base_offset, again.duplicate) == (first.base_offset, True)
    assert log.log_end_offset == 2


def test_advancing_the_start_lets_whole_segments_go_and_no_more() -> None:
    log = new_log(config=SMALL_SEGMENTS)
    for number in range(20):
        append(log, f"value {number}")
    second = log.segments[1].base_offset
    gone = log.advance_log_start(second + 1)
    assert [segment.base_offset for segment in gone] == [0]
    assert log.log_start_offset == second + 1
    with pytest.raises(OffsetOutOfRange):
        log.read(second, 1_000, log.log_end_offset)
    assert read_values(log, second + 1)[0] == f"value {second + 1}"


def test_what_was_written_is_unsynced_until_it_is_handed_over() -> None:
    log = new_log(config=SMALL_SEGMENTS)
    log.unsynced()
    for number in range(8):
        append(log, f"value {number}")
    work, end = log.unsynced()
    assert end == 8
    assert set(work) >= {segment.file for segment in log.segments[:-1]}
    assert log.unsynced()[0] == []


def test_a_flipped_bit_in_old_bytes_is_never_served() -> None:
    files = MemoryFiles()
    log = new_log(files)
    append(log, "good")
    append(log, "bad!")
    append(log, "fine")
    segment = log.active
    segment.checked.clear()  # as after a restart: these bytes were written by an earlier process
    end_of_first = segment.translate_offset(1)
    data = bytearray(files.read(segment.path))
    data[end_of_first + 70] ^= 1
    segment.file.truncate(0)
    segment.file.append(data)
    assert read_values(log, 0, limit=1) == ["good"]
    with pytest.raises(CorruptLog):
        log.read(1, 1_000_000, 3)
    assert read_values(log, 2) == ["fine"]


def test_an_offset_that_no_index_has_room_for_does_not_keep_a_segment_from_being_sealed() -> None:
    """Base offsets are outside the checksum: a flipped bit there makes one of a batch that looks well otherwise."""
    log = new_log()
    append(log, "a")
    segment = log.active
    header = parse_header(memoryview(batch_of(["b"], timestamp=2_000))).placed(2**40, 0)
    for position in (segment.size, segment.size + 10_000):
        segment.index_batch(position, header._replace(length=10_000))
    segment.seal()
    assert (len(segment.offset_index), len(segment.time_index)) == (0, 0)


def headers_of(data: bytes) -> Iterator[BatchHeader]:
    position = 0
    while position < len(data):
        header = parse_header(data, position)
        yield header
        position += header.total_bytes


def cold_log(count: int) -> Log:
    """As after a restart: batches that this process has not read."""
    log = new_log()
    for number in range(count):
        append(log, f"value {number}")
    log.active.checked.clear()
    return log


def test_read_of_cold_bytes_checks_a_bounded_part_and_returns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = cold_log(40)
    batch_bytes = log.active.translate_offset(1)
    monkeypatch.setattr(log_read, "CHECK_BYTES_MAX", 3 * batch_bytes)
    offset, lengths, checked = 0, [], []
    while (piece := log.read(offset, 1_000_000, 40)) is not None:
        lengths.append(piece.length)
        checked.append(piece.checked_bytes)
        offset += len([*headers_of(piece.read())])
    assert offset == 40
    assert max(checked) <= 4 * batch_bytes
    assert sum(checked) == sum(lengths) == log.size_bytes
    piece = log.read(0, 1_000_000, 40)
    assert piece is not None
    assert (piece.length, piece.checked_bytes) == (log.size_bytes, 0)


def test_read_behind_checked_bytes_checks_only_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    log = cold_log(40)
    batch_bytes = log.active.translate_offset(1)
    monkeypatch.setattr(log_read, "CHECK_BYTES_MAX", 3 * batch_bytes)
    first, second = log.read(0, 1_000_000, 40), log.read(0, 1_000_000, 40)
    assert first is not None
    assert second is not None
    assert first.length == first.checked_bytes
    assert second.length == first.length + second.checked_bytes


def test_jitter_above_segment_ms_rolls_no_segment_early() -> None:
    for topic in "abcdefgh":
        log = Log.create(
            MemoryFiles(), f"/data/{topic}-0", replace(CONFIG, segment_ms=1_000, segment_jitter_ms=1_000_000), now_ms=0
        )
        for _ in range(3):
            append(log, "at the same time", now_ms=0)
        assert len(log.segments) == 1
