"""A log that is cut because its leader's differs: what is left is a log like any other."""

from dataclasses import replace

import pytest

from headrace.storage.log import Log
from headrace.storage.log_truncation import truncate_log
from headrace.storage.log_types import LogAppendInfo
from tests.unit.storage.log_kit import CONFIG, append, new_log, read_values

BATCHES = 20


def sequenced(log: Log, number: int) -> LogAppendInfo:
    return append(log, f"value {number}", producer_id=1, producer_epoch=0, base_sequence=number)


@pytest.mark.parametrize("end", [19, 12, 7, 6, 1])
@pytest.mark.parametrize("segment_bytes", [300, 1_000, 1_000_000])
def test_rule_12_producers_are_remembered_over_a_truncation(end: int, segment_bytes: int) -> None:
    log = new_log(config=replace(CONFIG, segment_bytes=segment_bytes))
    for number in range(BATCHES):
        sequenced(log, number)
    truncate_log(log, end, now_ms=0)
    assert log.log_end_offset == end
    for number in range(max(0, end - 5), end):
        again = sequenced(log, number)
        assert (again.duplicate, again.base_offset) == (True, number), "what is left is known"
    for number in range(end, BATCHES):
        anew = sequenced(log, number)
        assert (anew.duplicate, anew.base_offset) == (False, number), "what was cut may come again"
    assert read_values(log) == [f"value {number}" for number in range(BATCHES)]


@pytest.mark.parametrize("timestamps", [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [1, 5, 2, 4, 3], [3, 3, 3, 3, 3]])
@pytest.mark.parametrize("end", [1, 2, 3, 4])
def test_highest_timestamp_is_that_of_the_records_left(timestamps: list[int], end: int) -> None:
    log = new_log()
    for timestamp in timestamps:
        append(log, "value", timestamp=timestamp)
    truncate_log(log, end, now_ms=0)
    highest = max(timestamps[:end])
    assert (log.active.max_timestamp, log.active.max_timestamp_offset) == (highest, timestamps.index(highest))
