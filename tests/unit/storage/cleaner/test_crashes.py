"""Compaction and crashes: stopped before any operation on the disk, a log comes back with the same content."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from headrace.records.record import Record
from headrace.storage.log import Log
from headrace.testing.simulation.files import PowerLost, SimFiles
from tests.unit.storage.cleaner.compaction_kit import (
    COMPACTED,
    clean,
    cleaner,
    end_transaction,
    last_values,
    names,
    new_log,
    records,
    reopen,
    roll,
    sync,
    write,
)

CONFIG = replace(COMPACTED, segment_bytes=700, index_interval_bytes=200)
LEFTOVERS = (".cleaned", ".swap", ".deleted", ".tmp")


def written_log(files: SimFiles) -> Log:
    """Three segments that merge, one with an aborted transaction, one that stays alone; all of it on disk."""
    files.make_dir("/data")
    files.sync_dir("/")
    log = new_log(files, CONFIG)
    write(log, ("a", "1"), ("b", "1"), ("c", "1"), producer_id=1, producer_epoch=0, base_sequence=0)
    roll(log)
    write(log, ("a", "2"), ("gone", "x"))
    write(log, ("b", "aborted"), producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 2, commit=False)
    roll(log)
    write(log, ("a", "3"), ("gone", None))
    roll(log)
    write(log, *((f"k{number}", "x" * 20) for number in range(12)))
    write(log, *((f"k{number}", "y" * 20) for number in range(9)))
    roll(log)
    write(log, ("a", "active"), producer_id=1, producer_epoch=0, base_sequence=3)
    sync(log)
    files.sync_dir("/data")
    return log


def committed(log: Log) -> dict[bytes | None, bytes]:
    aborted = {
        offset
        for segment in log.segments
        for txn in segment.aborted.between(0, 1 << 60)[0]
        for offset in range(txn.first_offset, txn.last_offset + 1)
    }
    return last_values([record for record in records(log) if record.offset not in aborted])


def compact_until_it_stops(files: SimFiles, log: Log, operations_left: int) -> bool:
    """Whether the power went before the round was over."""
    files.lose_power_before(operations_left + 1)
    try:
        clean(log)
    except PowerLost:
        return True
    finally:
        files.heal()
    return False


def check_reopened(files: SimFiles, end: int, before: dict[bytes | None, bytes], offsets: set[Record]) -> None:
    log = reopen(files, CONFIG, recovery_point=end)
    assert committed(log) == before
    assert set(records(log)) <= offsets, "nothing moves, nothing is made up"
    assert [txn.producer_id for segment in log.segments for txn in segment.aborted.between(0, end)[0]] == [2]
    assert log.log_end_offset == end
    assert not log.holes
    assert not [name for name in names(log) if name.endswith(LEFTOVERS)]
    entry = log.producers.get(1)
    assert entry is not None
    assert entry.next_sequence == 4
    bases = [segment.base_offset for segment in log.segments]
    ends = [segment.next_offset for segment in log.segments]
    assert bases[1:] == ends[:-1], "segments neither overlap nor leave a gap"
    # And it can be cleaned to the end.
    clean(log)
    assert committed(log) == before


def killed(files: SimFiles, seed: int) -> None:
    """kill -9: what was handed to the system is there."""


def power_lost(files: SimFiles, seed: int) -> None:
    """Only what was synced is there."""
    files.lose_power()


def power_lost_in_between(files: SimFiles, seed: int) -> None:
    """And by chance some of what was not."""
    files.lose_power(torn=Random(seed))


@pytest.mark.parametrize("crash", [killed, power_lost, power_lost_in_between])
def test_a_crash_before_any_operation_loses_no_key(crash: Callable[[SimFiles, int], None]) -> None:
    operations_left, stopped = 0, True
    while stopped:
        with SimFiles() as files:
            log = written_log(files)
            before, offsets, end = committed(log), set(records(log)), log.log_end_offset
            stopped = compact_until_it_stops(files, log, operations_left)
            crash(files, operations_left)
            check_reopened(files, end, before, offsets)
        operations_left += 1
    assert operations_left > 100, "the whole of a round was tried"


def test_a_crash_during_the_recovery_from_a_crash_loses_no_key() -> None:
    """The swap is stopped where it is furthest apart, then its completion is stopped everywhere."""
    operations_left, stopped = 0, True
    while stopped:
        with SimFiles() as files:
            log = written_log(files)
            before, offsets, end = committed(log), set(records(log)), log.log_end_offset
            files.fail("sync_dir", nth=3)
            with pytest.raises(Exception, match="simulated"):
                clean(log)
            files.heal()
            files.lose_power(torn=Random(operations_left))
            files.lose_power_before(operations_left + 1)
            try:
                reopen(files, CONFIG, recovery_point=end)
                stopped = False
            except PowerLost:
                stopped = True
            files.heal()
            files.lose_power(torn=Random(operations_left + 1))
            check_reopened(files, end, before, offsets)
        operations_left += 1
    assert operations_left > 20


def test_steps_that_are_given_up_one_after_the_other_lose_no_key() -> None:
    with SimFiles() as files:
        log = written_log(files)
        before, offsets, end = committed(log), set(records(log)), log.log_end_offset
        stop_after = 0
        while True:
            task = cleaner(log).run()
            for number, step in enumerate(task):
                if step is not None:
                    step()
                if number == stop_after:
                    break
            else:
                break
            task.close()
            if any(name.endswith(".swap") for name in names(log)):
                log = reopen(files, CONFIG, recovery_point=end)
            assert committed(log) == before
            stop_after += 1
        check_reopened(files, end, before, offsets)
