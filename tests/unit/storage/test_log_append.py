"""A run that is written in one go leaves the log as it would be had its batches come one by one."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import HeadraceError, StorageError
from headrace.records.batch import parse_header
from headrace.storage.log import Log
from headrace.storage.log_append import append_batches_as_leader
from headrace.storage.segment.segment_index import OffsetIndex, TimeIndex
from headrace.testing.simulation.files import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, batch_of, new_log, read_values

EPOCH = 0
Batches = Sequence[bytes]


def views(batches: Batches) -> list[memoryview]:
    return [memoryview(bytearray(batch)) for batch in batches]


def one_by_one(log: Log, batches: Batches) -> None:
    for batch in views(batches):
        try:
            log.append(batch, parse_header(batch), EPOCH, 0)
        except HeadraceError:
            continue


def as_a_run(log: Log, batches: Batches) -> None:
    run = views(batches)
    try:
        if append_batches_as_leader(log, run, [parse_header(batch) for batch in run], EPOCH, 0) is not None:
            return
    except HeadraceError:
        pass
    one_by_one(log, batches)


def entries(index: OffsetIndex | TimeIndex) -> list[tuple[int, int]]:
    return [index.entry(number) for number in range(len(index))]


def grown(write: Callable[[Log, Batches], None], runs: Sequence[Batches]) -> tuple[object, ...]:
    """Everything that there is to a log which got these."""
    log = new_log(config=replace(CONFIG, segment_bytes=2_000))
    append(log, "the first")
    for run in runs:
        write(log, run)
    return (
        log.log_end_offset,
        log.producers.to_snapshot(),
        [(segment.base_offset, segment.file.read(0, segment.size)) for segment in log.segments],
        [entries(index) for segment in log.segments for index in (segment.offset_index, segment.time_index)],
        [(segment.max_timestamp, segment.max_timestamp_offset, segment.next_offset) for segment in log.segments],
    )


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Of nobody, or of one of two producers who count, forget to count, repeat themselves and begin again."""
    values = draw(st.lists(st.text("ab", max_size=40), min_size=1, max_size=3))
    timestamp = draw(st.integers(1_000, 1_003))
    producer_id = draw(st.sampled_from([-1, 7, 8]))
    if producer_id < 0:
        return batch_of(values, timestamp=timestamp)
    return batch_of(
        values,
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=draw(st.sampled_from([0, 0, 0, 1])),
        base_sequence=draw(st.integers(0, 6)),
    )


@given(st.lists(st.lists(batches(), min_size=2, max_size=6), min_size=1, max_size=6))
def test_a_run_leaves_what_its_batches_would_leave(runs: list[list[bytes]]) -> None:
    assert grown(as_a_run, runs) == grown(one_by_one, runs)


def idempotent(first_sequence: int, count: int) -> list[bytes]:
    sequences = [(first_sequence + number) % 2**31 for number in range(count)]
    return [batch_of(["x"], producer_id=7, producer_epoch=0, base_sequence=sequence) for sequence in sequences]


@pytest.mark.parametrize("first_sequence", [0, 2**31 - 2], ids=["from the start", "over the end of the numbers"])
def test_sequences_in_a_row_are_one_run_and_a_repetition_is_found(first_sequence: int) -> None:
    log = new_log()
    append(log, "the first")
    run = views(idempotent(first_sequence, 4))
    headers = [parse_header(batch) for batch in run]
    placed = append_batches_as_leader(log, run, headers, EPOCH, 0)
    assert placed is not None
    assert [header.base_offset for header in placed] == [1, 2, 3, 4]
    assert append_batches_as_leader(log, run, headers, EPOCH, 0) is None, (
        "one by one they are answered with their first offsets"
    )
    assert log.append(run[3], headers[3], EPOCH, 0) == (4, 5, True)


@pytest.mark.parametrize("what", ["a gap", "another producer", "another epoch", "nobody's", "the first batch of a log"])
def test_what_is_not_simple_is_left_alone(what: str) -> None:
    log = new_log()
    batches = idempotent(0, 2)
    if what == "the first batch of a log":
        assert (
            append_batches_as_leader(log, views(batches), [parse_header(batch) for batch in batches], EPOCH, 0) is None
        )
        return
    append(log, "the first")
    odd = {
        "a gap": {"producer_id": 7, "producer_epoch": 0, "base_sequence": 3},
        "another producer": {"producer_id": 8, "producer_epoch": 0, "base_sequence": 2},
        "another epoch": {"producer_id": 7, "producer_epoch": 1, "base_sequence": 2},
        "nobody's": {},
    }[what]
    batches.append(batch_of(["x"], **odd))
    assert append_batches_as_leader(log, views(batches), [parse_header(batch) for batch in batches], EPOCH, 0) is None
    assert (log.log_end_offset, read_values(log), len(log.producers)) == (1, ["the first"], 0)


def test_a_write_that_fails_has_written_nothing() -> None:
    files = SimFiles()
    log = new_log(files)
    append(log, "the first")
    before = log.active.size
    files.fail("append")
    run = views(idempotent(0, 3))
    with pytest.raises(StorageError):
        append_batches_as_leader(log, run, [parse_header(batch) for batch in run], EPOCH, 0)
    assert (log.log_end_offset, log.active.size, len(log.producers)) == (1, before, 0)
