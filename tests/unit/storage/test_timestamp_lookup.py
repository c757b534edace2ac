"""Look-ups by timestamp in a log that changes between their steps."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.model.errors import LookupInterrupted
from headrace.storage import timestamp_lookup
from headrace.storage.io.stepwise import OffLoop, Task, run_through
from headrace.storage.log import Log
from headrace.storage.log_truncation import restart_log_at, truncate_log
from headrace.storage.log_types import TimestampAndOffset
from headrace.storage.timestamp_lookup import ATTEMPTS_MAX, offset_at_or_after, offset_of_max_timestamp
from tests.unit.storage.log_kit import CONFIG, append, new_log

SMALL_SEGMENTS = replace(CONFIG, segment_bytes=300)
Lookup = Callable[[Log], Task[TimestampAndOffset | None]]


def log_of(count: int) -> Log:
    """Records with the timestamps 1000, 1010…, a batch each."""
    log = new_log(config=SMALL_SEGMENTS)
    for number in range(count):
        append(log, f"value {number}", timestamp=1_000 + 10 * number)
    return log


def interrupted(log: Log, lookup: Lookup, change: Callable[[Log], None]) -> TimestampAndOffset | None:
    """The result of a look-up during whose first walk over records the log changes."""
    task = lookup(log)
    step = next(task)
    while step is None:
        step = next(task)
    assert isinstance(step, OffLoop)
    change(log)
    step()
    return run_through(task)


def newest(log: Log) -> Task[TimestampAndOffset | None]:
    return offset_of_max_timestamp(log)


def at(timestamp: int) -> Lookup:
    return lambda log: offset_at_or_after(log, timestamp)


def truncate_and_write_others(log: Log) -> None:
    truncate_log(log, 5, now_ms=0)
    for number in range(30):
        append(log, "other", timestamp=500 + number)


CHANGES: dict[str, Callable[[Log], object]] = {
    "append and roll": lambda log: [append(log, "later", timestamp=900) for _ in range(20)],
    "truncate above": lambda log: truncate_log(log, 18, now_ms=0),
    "truncate below": lambda log: truncate_log(log, 4, now_ms=0),
    "truncate to other records": truncate_and_write_others,
    "begin elsewhere": lambda log: restart_log_at(log, 100, 0),
    "move the log start": lambda log: log.advance_log_start(15),
    "move the log start to the end": lambda log: log.advance_log_start(20),
    "abandon": lambda log: log.abandon(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("lookup", [at(1_100), at(0), at(1_190), newest], ids=["middle", "first", "last", "newest"])
def test_log_that_changes_during_a_lookup_gives_the_result_of_the_changed_log(
    lookup: Lookup, change: Callable[[Log], None]
) -> None:
    log = log_of(20)
    result = interrupted(log, lookup, change)
    assert result == run_through(lookup(log))


def test_log_that_keeps_changing_interrupts_the_lookup() -> None:
    log = log_of(40)
    task = offset_at_or_after(log, 0)
    for number in range(1, ATTEMPTS_MAX + 1):
        assert isinstance(next(task), OffLoop)
        log.advance_log_start(number)
    with pytest.raises(LookupInterrupted):
        next(task)


def test_batches_that_lack_a_record_after_the_time_are_walked_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamp_lookup, "HEADERS_PER_STEP", 10)
    log = new_log(config=replace(CONFIG, index_interval_bytes=1_000_000))
    for timestamp in (*([1_000] * 95), 2_000):
        append(log, "x", timestamp=timestamp)
    steps = list(offset_at_or_after(log, 2_000))
    assert [step is None for step in steps] == [True] * 9 + [False]
