"""A follower's log is its leader's, whether batches are appended one by one or many in one write."""

import random
from dataclasses import replace

import pytest

from headrace.broker.replication.copying import RUN_BATCHES_MAX, Run, checked_runs
from headrace.model.errors import CorruptBatch, OffsetOutOfRange
from headrace.records.batch import patch_offset_and_epoch, walk
from headrace.records.control import ControlType, EndMarker, build_marker_batch
from headrace.storage.copies import append_copies, append_copy
from headrace.storage.log import Log
from headrace.storage.memory_files import MemoryFiles
from tests.unit.storage.log_kit import CONFIG, batch_of, new_log, read_values

SMALL = replace(CONFIG, segment_bytes=2_000)


def written(chance: random.Random, count: int) -> bytes:
    """Batches as a leader has them: gaps, epochs, producers of all kinds, markers."""
    out = bytearray()
    offset, epoch, sequences = 0, 0, dict[int, int]()
    for number in range(count):
        values = [f"{number}-{one}" for one in range(chance.randint(1, 4))]
        producer = chance.choice([-1, 1, 2, 3])
        fields = {"timestamp": 1_000 + chance.randint(0, 50)}
        if producer >= 0:
            fields |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences.get(producer, 0)}
            sequences[producer] = sequences.get(producer, 0) + len(values)
        batch = bytearray(batch_of(values, **fields, **({"transactional": True} if producer == 3 else {})))
        if chance.random() < 0.05:
            marker = EndMarker(chance.choice([ControlType.COMMIT, ControlType.ABORT]), 0)
            batch = bytearray(build_marker_batch(marker, producer_id=3, producer_epoch=0, timestamp=1_000))
            values = [""]
        epoch += chance.random() < 0.02
        patch_offset_and_epoch(memoryview(batch), offset, epoch)
        out += batch
        offset += len(values) + (chance.random() < 0.1)
    return bytes(out)


def state_of(log: Log) -> object:
    log.active.seal()
    files = log.files
    assert isinstance(files, MemoryFiles)
    content = {name: files.open(f"{log.directory}/{name}").read(0, 10**9) for name in files.list(log.directory)}
    return content, log.producers.to_snapshot(), log.log_end_offset, log.producers.first_unstable_offset


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("config", [CONFIG, SMALL], ids=["one segment", "many segments"])
def test_many_at_once_leave_what_one_by_one_leaves(seed: int, config: object) -> None:
    records = memoryview(written(random.Random(seed), 600))
    together, apart = new_log(config=config), new_log(config=config)  # type: ignore[arg-type]
    runs = list(checked_runs(records, 0))
    assert len(runs) < 300, "most of them are copied together"
    for run in runs:
        append_copies(together, *run, now_ms=0)
    for position, header in walk(records):
        append_copy(apart, records[position : position + header.total_bytes], header, 0)
    assert state_of(together) == state_of(apart)


def two_batches() -> memoryview:
    first, second = bytearray(batch_of("ab")), bytearray(batch_of("cd"))
    patch_offset_and_epoch(memoryview(first), 0, 0)
    patch_offset_and_epoch(memoryview(second), 2, 0)
    return memoryview(bytes(first + second))


def test_what_is_held_is_passed_over() -> None:
    log = new_log()
    for arrived in (two_batches()[:-1], two_batches(), two_batches()):
        for run in checked_runs(arrived, log.log_end_offset):
            append_copies(log, *run, now_ms=0)
    assert read_values(log) == ["a", "b", "c", "d"]


def test_a_batch_that_we_hold_in_part_is_refused() -> None:
    log = new_log()
    (run,) = checked_runs(two_batches(), 0)
    append_copies(log, *run, now_ms=0)
    (again,) = checked_runs(two_batches(), 3)
    with pytest.raises(OffsetOutOfRange):
        append_copies(log, *again, now_ms=0)


def test_what_comes_before_a_damaged_batch_is_kept() -> None:
    damaged = bytearray(two_batches())
    damaged[-1] ^= 1
    runs = checked_runs(memoryview(damaged), 0)
    assert len(next(runs).headers) == 1
    with pytest.raises(CorruptBatch, match="offset 2 arrived damaged"):
        next(runs)


def test_half_a_batch_is_left_for_the_next_fetch() -> None:
    whole = two_batches()
    (run,) = checked_runs(whole[:-1], 0)
    assert len(run.headers) == 1


def test_others_have_a_turn_between_runs() -> None:
    records = bytearray()
    for offset in range(RUN_BATCHES_MAX + 1):
        batch = bytearray(batch_of("x"))
        patch_offset_and_epoch(memoryview(batch), offset, 0)
        records += batch
    runs: list[Run] = list(checked_runs(memoryview(records), 0))
    assert [len(run.headers) for run in runs] == [RUN_BATCHES_MAX, 1]
