"""A log on a disk that loses power, fails, fills up or forgets bits (D2, D4, D5, D6, D7, D12, D13)."""

from collections.abc import Callable
from copy import deepcopy
from fnmatch import fnmatch
from functools import partial
from random import Random
from typing import Any

import pytest

from headrace.model.errors import CorruptLog
from headrace.storage.io.stepwise import run_through
from headrace.storage.log import Log
from headrace.storage.log_types import TimestampAndOffset
from headrace.storage.timestamp_lookup import offset_at_or_after, offset_of_max_timestamp
from headrace.testing import PowerLost, SimFiles
from tests.unit.storage.fault_kit import (
    DATA,
    FOLDER,
    PARTITION,
    Holder,
    Promises,
    lives_on,
    readable,
    run_until,
)
from tests.unit.storage.log_kit import append

Crash = Callable[[SimFiles, int], None]


def killed(files: SimFiles, seed: int) -> None:
    """kill -9: what was handed to the system is there."""


def power_lost(files: SimFiles, seed: int) -> None:
    """Only what was synced is there."""
    files.lose_power()


def power_lost_in_between(files: SimFiles, seed: int) -> None:
    """And by chance some of what was not."""
    files.lose_power(torn=Random(seed))


@pytest.mark.parametrize("crash", [killed, power_lost, power_lost_in_between])
def test_d2_d4_d12_a_crash_before_any_operation_loses_nothing_that_was_acknowledged(crash: Crash) -> None:
    operations, stopped = 0, True
    while stopped:
        with SimFiles() as files:
            promises = Promises()
            stopped = run_until(files, promises, operations)
            crash(files, operations)
            lives_on(files, promises, boot=10)
        operations += 1
    assert operations > 150, "the whole life was tried"


@pytest.mark.parametrize("stopped_after", [45, 78, 81, 100, 131, 160, 1_000])
def test_d4_a_crash_during_the_recovery_from_a_crash_loses_nothing(stopped_after: int) -> None:
    operations, stopped = 0, True
    while stopped:
        with SimFiles() as files:
            promises = Promises()
            run_until(files, promises, stopped_after)
            files.lose_power(torn=Random(operations))
            files.lose_power_before(operations + 1)
            try:
                holder = Holder(files, promises, boot=9)
                holder.acknowledge_survivors()
                holder.write(1)
                stopped = False
            except PowerLost:
                stopped = True
            files.heal()
            files.lose_power(torn=Random(operations + 1))
            lives_on(files, promises, boot=10)
        operations += 1
    assert operations > 10


# Files that forget bits (D5, D13)

KINDS = (
    "*.log",
    "*.index",
    "*.timeindex",
    "*.snapshot",
    "leader-epoch-checkpoint",
    "partition.metadata",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    ".kafka_cleanshutdown",
)
DAMAGE_SAID = (
    "corrupt",
    "checksum",
    "again",
    "rebuilding",
    "cannot be read",
    "lost",
    "version",
    "should have",
    "not text",
    "names no",
)


def lived(files: SimFiles, *, clean: bool) -> Promises:
    """Several segments in two leader epochs, a log start within a segment, and everything checkpointed."""
    promises = Promises()
    holder = Holder(files, promises)
    holder.write(10)
    holder.close()
    holder = Holder(files, promises, boot=1)
    holder.write(7)
    holder.delete_records(2)
    holder.log_dir.note_cleaned(PARTITION, 1)
    holder.log_dir.write_cleaned()
    holder.log_dir.note_high_watermark(PARTITION, 17)
    holder.log_dir.write_high_watermarks()
    holder.log.active.persist_indexes()
    if clean:
        holder.close()
    else:
        holder.checkpoint()
    return promises


def contents(files: SimFiles) -> dict[str, bytes]:
    paths = [f"{folder}/{name}" for folder in (DATA, FOLDER) for name in files.list(folder)]
    return {path: files.read(path) for path in paths if path != FOLDER}


def planted(disk: dict[str, bytes]) -> SimFiles:
    files = SimFiles()
    files.make_dir(FOLDER)
    for path, data in disk.items():
        files.open(path, create=True).append(data)
    return files


def flips(path: str, size: int) -> list[tuple[int, int]]:
    """Bytes and bits to flip: all of a small file; of a segment the headers of two batches, and samples of the rest."""
    random = Random(path)
    first_batch = 85  # bytes, about
    places = {*range(min(size, 2 * first_batch)), *random.sample(range(size), min(size, 30))}
    if path.endswith(".snapshot"):
        places = set(random.sample(range(size), min(size, 25)))  # a checksum covers it
    return [(byte, random.randrange(8)) for byte in sorted(places)]


def view(holder: Holder) -> dict[str, Any]:
    """Everything that a client could ask of the log."""
    log = holder.log
    times = {offset: _or_error(partial(_first_at_or_after, log, 1_000 + offset)) for offset in range(2, 17)}
    return {
        "records": readable(log),
        "times": times,
        "newest": _or_error(lambda: run_through(offset_of_max_timestamp(log))),
        "epochs": [log.epochs.end_offset_for(epoch, log.log_end_offset) for epoch in range(3)],
        "start": log.log_start_offset,
        "end": log.log_end_offset,
        "producer": [entry.next_sequence for entry in log.producers.active()],
    }


def _first_at_or_after(log: Log, timestamp: int) -> TimestampAndOffset | None:
    return run_through(offset_at_or_after(log, timestamp))


def _or_error(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except CorruptLog:
        return "refused"


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize("pattern", KINDS)
def test_d5_d13_no_flipped_bit_makes_us_serve_what_was_not_written(
    pattern: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with SimFiles() as files:
        promises = lived(files, clean=clean)
        disk = contents(files)
        sound = view(Holder(files, Promises()))
    paths = [path for path, data in disk.items() if fnmatch(path.split("/")[-1], pattern) and data]
    assert paths or (pattern == ".kafka_cleanshutdown" and not clean)
    for path in paths:
        for byte, bit in flips(path, len(disk[path])):
            caplog.clear()
            with planted(disk) as files:
                files.flip_bit(path, byte=byte, bit=bit)
                check_damaged(files, deepcopy(promises), sound, f"{path} byte {byte} bit {bit}", caplog)


def check_damaged(
    files: SimFiles, promises: Promises, sound: dict[str, Any], place: str, caplog: pytest.LogCaptureFixture
) -> None:
    holder = Holder(files, promises, boot=2)
    seen = view(holder)
    if seen != sound:
        assert any(word in caplog.text for word in DAMAGE_SAID), f"{place}: nothing was said"
    records, good = seen["records"], sound["records"]
    for offset, value in records.items():
        assert value == promises.acked[offset], f"{place}: another record is served at offset {offset}"
    missing = set(good) - set(records)
    assert len(missing) <= 1, f"{place}: {missing} cannot be read any more"
    for offset, found in seen["times"].items():
        assert missing or found[:2] == (offset, 1_000 + offset), f"{place}: the time of {offset} leads to {found}"
    assert seen["newest"] in ("refused", TimestampAndOffset(max(records), 1_000 + max(records), 1)), place
    # Where one epoch follows another, a batch that says the other may be right: nobody else knows, to a batch.
    assert seen["epochs"][0] in [(0, 9), (0, 10), (0, 11)], place
    assert seen["epochs"][1:] == sound["epochs"][1:], place
    assert seen["producer"] == sound["producer"] or 16 in missing, f"{place}: only its own batch can tell"
    assert seen["end"] == 17, place
    assert seen["start"] in (0, 2), place
    assert [append(holder.log, "more").base_offset for _ in range(2)] == [17, 18], place
    assert readable(holder.log).keys() >= {17, 18}, f"{place}: no more appends"
