"""A follower's log is its leader's, whether batches are appended one by one or many in one write."""

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from headrace.broker.replication.follower_log import (
    RUN_BATCHES_MAX,
    Expected,
    Unconfirmed,
    VerifiedRun,
    verified_batches,
)
from headrace.model.errors import CorruptBatch, OffsetOutOfRange
from headrace.model.ids import NO_EPOCH
from headrace.records.batch import CRC_START, patch_offset_and_epoch, walk
from headrace.records.control import ControlType, EndMarker, build_marker_batch
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.log import Log
from headrace.storage.log_append import append_batches_as_follower, append_copy
from tests.unit.storage.log_kit import CONFIG, batch_of, new_log

SMALL = replace(CONFIG, segment_bytes=2_000)
FRESH = Expected(0, NO_EPOCH, 100)  # by an empty log, from a leader in epoch 100
CONFIRMED = FRESH._replace(is_confirmed=True)


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
    runs = list(verified_batches(records, CONFIRMED))
    assert len(runs) < 300, "most of them are copied together"
    for run in runs:
        append_batches_as_follower(together, *run, now_ms=0)
    for position, header in walk(records):
        append_copy(apart, records[position : position + header.total_bytes], header, 0)
    assert state_of(together) == state_of(apart)


def two_batches() -> memoryview:
    first, second = bytearray(batch_of("ab")), bytearray(batch_of("cd"))
    patch_offset_and_epoch(memoryview(first), 0, 0)
    patch_offset_and_epoch(memoryview(second), 2, 0)
    return memoryview(bytes(first + second))


def test_batch_that_the_follower_has_is_corrupt() -> None:
    """A leader never sends one: its offset has changed."""
    with pytest.raises(CorruptBatch, match="offset 0 arrived where 2 should"):
        list(verified_batches(two_batches(), FRESH._replace(offset=2, epoch=0)))


def test_a_batch_that_we_hold_in_part_is_refused() -> None:
    log = new_log()
    (run,) = verified_batches(two_batches(), FRESH)
    append_batches_as_follower(log, *run, now_ms=0)
    (again,) = verified_batches(
        two_batches()[len(two_batches()) // 2 :], FRESH._replace(offset=3, epoch=0, is_confirmed=True)
    )
    with pytest.raises(OffsetOutOfRange):
        append_batches_as_follower(log, *again, now_ms=0)


def test_what_comes_before_a_damaged_batch_is_kept() -> None:
    damaged = bytearray(two_batches())
    damaged[-1] ^= 1
    runs = verified_batches(memoryview(damaged), FRESH)
    assert len(next(runs).headers) == 1
    with pytest.raises(CorruptBatch, match="offset 2 is corrupt on arrival"):
        next(runs)


def test_half_a_batch_is_left_for_the_next_fetch() -> None:
    whole = two_batches()
    (run,) = verified_batches(whole[:-1], FRESH)
    assert len(run.headers) == 1


def test_others_have_a_turn_between_runs() -> None:
    records = bytearray()
    for offset in range(RUN_BATCHES_MAX + 1):
        batch = bytearray(batch_of("x"))
        patch_offset_and_epoch(memoryview(batch), offset, 0)
        records += batch
    runs: list[VerifiedRun] = list(verified_batches(memoryview(records), FRESH))
    assert [len(run.headers) for run in runs] == [RUN_BATCHES_MAX, 1]


def batch_at(offset: int, epoch: int, *values: str) -> bytes:
    batch = bytearray(batch_of(values or ["x"]))
    patch_offset_and_epoch(memoryview(batch), offset, epoch)
    return bytes(batch)


@pytest.mark.parametrize(
    ("batches", "appended", "is_appended_when_confirmed"),
    [
        ([(10, 4), (11, 4)], 2, True),
        ([(10, 5), (11, 5)], 0, True),  # a new leader epoch
        ([(10, 4), (12, 4), (13, 4)], 1, True),  # a gap, as compaction leaves one
        ([(11, 4)], 0, True),
        ([(10, 7)], 0, False),  # an epoch above the leader's
        ([(10, 4), (11, 3)], 1, False),  # an epoch below that of the batch before
        ([(10, 3)], 0, False),
        ([(10, 4), (9, 4)], 1, False),  # an offset below the end
        ([(10, 4), (1034, 4), (12, 4)], 1, False),
        ([(10, -1)], 0, False),
        ([(-(2**63) + 10, 4)], 0, False),
    ],
)
def test_batch_that_does_not_follow_waits_for_the_leader(
    batches: list[tuple[int, int]], appended: int, is_appended_when_confirmed: bool
) -> None:
    records = memoryview(b"".join(batch_at(*one) for one in batches))
    expected = Expected(10, 4, 6)

    def taken(expected: Expected) -> int:
        count = 0
        try:
            for run in verified_batches(records, expected):
                count += len(run.headers)
        except Unconfirmed:
            assert not expected.is_confirmed
        except CorruptBatch:
            assert not is_appended_when_confirmed
        else:
            assert count == len(batches)
        return count

    assert taken(expected) == appended
    confirmed = taken(expected._replace(is_confirmed=True))
    assert (confirmed == len(batches)) is is_appended_when_confirmed


def test_first_epoch_of_an_empty_log_needs_no_confirmation() -> None:
    """No lower epoch can have become this one."""
    assert len(list(verified_batches(memoryview(batch_at(0, 0)), FRESH))) == 1
    with pytest.raises(Unconfirmed):
        list(verified_batches(memoryview(batch_at(0, 1)), FRESH))


def test_bytes_without_a_whole_batch_are_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="no whole batch"):
        list(verified_batches(memoryview(batch_at(0, 0)[:-1]), FRESH))


@pytest.mark.parametrize("bit", range(8 * CRC_START))
def test_flipped_bit_before_the_checksum_is_not_appended(bit: int) -> None:
    """Offset, length, leader epoch, format and the checksum itself, in the middle of three batches."""
    first, second, third = batch_at(0, 3), bytearray(batch_at(1, 3)), batch_at(2, 3)
    second[bit // 8] ^= 1 << bit % 8
    runs = verified_batches(memoryview(bytes(first + second + third)), Expected(0, 3, 7))
    assert [header.base_offset for header in next(runs).headers] == [0]
    with suppress(CorruptBatch, Unconfirmed):
        assert list(runs) == [], "a length that is too large leaves it to the next fetch, which begins with it"
