"""A round of compaction: what stays, what goes, what must not get lost on the way."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import CorruptLog, DiskFull, OutOfOrderSequence, StorageError
from headrace.records.compression import Codec
from headrace.records.record import decode_records
from headrace.storage.cleaner.batch_reader import RECORDS_PER_SLICE
from headrace.storage.cleaner.offset_map import ENTRY_BYTES
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.log_truncation import truncate_log
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_replacement import remove_segment_files, set_aside_segment_files
from headrace.testing.simulation.files import SimFiles
from tests.unit.storage.cleaner.compaction_kit import (
    COMPACTED,
    DELETE_RETENTION_MS,
    DIRECTORY,
    batches,
    clean,
    cleaner,
    dirty_part,
    end_transaction,
    last_values,
    names,
    new_log,
    pairs,
    records,
    reopen,
    roll,
    sync,
    write,
)

NOW = 200
LATER = NOW + DELETE_RETENTION_MS


def test_of_each_key_the_last_record_stays_at_its_offset() -> None:
    log = new_log()
    write(log, ("a", "1"), ("b", "1"), ("a", "2"))
    write(log, ("b", "2"), ("c", "1"))
    roll(log)
    write(log, ("d", "1"))
    cleaned = clean(log)
    assert pairs(log) == [(2, "a", "2"), (3, "b", "2"), (4, "c", "1"), (5, "d", "1")]
    assert cleaned.cleaned_to == 5
    assert cleaned.bytes_after < cleaned.bytes_before


def test_the_active_segment_is_left_alone() -> None:
    log = new_log()
    write(log, ("a", "1"))
    roll(log)
    write(log, ("a", "2"), ("a", "3"))
    clean(log)
    assert pairs(log) == [(0, "a", "1"), (1, "a", "2"), (2, "a", "3")]


def test_a_second_round_cleans_what_came_since_against_what_was_clean() -> None:
    log = new_log()
    write(log, ("a", "1"), ("b", "1"))
    roll(log)
    cleaned_to = clean(log).cleaned_to
    write(log, ("a", "2"), ("c", "1"))
    roll(log)
    assert dirty_part(log, cleaned_to=cleaned_to).clean_bytes > 0
    assert clean(log, cleaned_to=cleaned_to).cleaned_to == 4
    assert pairs(log) == [(1, "b", "1"), (2, "a", "2"), (3, "c", "1")]


def test_records_without_a_key_go() -> None:
    log = new_log()
    write(log, (None, "x"), ("a", "1"), (None, "y"))
    roll(log)
    clean(log)
    assert pairs(log) == [(1, "a", "1")]


def test_the_last_batch_of_a_segment_stays_as_a_header_so_that_offsets_go_on() -> None:
    log = new_log()
    write(log, ("a", "1"))
    write(log, (None, "x"))
    roll(log)
    clean(log)
    assert [header.record_count for _, header in batches(log)] == [1, 0]
    again = reopen(log.files, recovery_point=log.log_end_offset)
    assert again.log_end_offset == log.log_end_offset == 2


def test_a_batch_keeps_its_place_its_codec_and_its_producer() -> None:
    log = new_log()
    before = write(
        log,
        *((f"k{n}", "x" * 50) for n in range(40)),
        codec=Codec.ZSTD,
        producer_id=4,
        producer_epoch=1,
        base_sequence=7,
    )
    write(log, *((f"k{n}", "y") for n in range(39)))
    roll(log)
    clean(log)
    batch, after = next(iter(batches(log)))
    assert [record.key for record in decode_records(batch, after)] == [b"k39"]
    assert (after.base_offset, after.last_offset_delta, after.codec) == (0, 39, Codec.ZSTD)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (4, 1, 7)
    assert after.last_offset == before.last_offset


def test_a_segment_in_which_nothing_changes_is_not_replaced() -> None:
    log = new_log()
    write(log, ("a", "1"), ("b", "1"))
    roll(log)
    before = log.segments[0]
    cleaned = clean(log)
    assert log.segments[0] is before
    assert cleaned.cleaned_to == 2
    assert not [name for name in names(log) if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_small_segments_are_merged_up_to_segment_bytes() -> None:
    config = replace(COMPACTED, segment_bytes=700)
    log = new_log(config=config)
    for number in range(12):
        write(log, (f"k{number}", "v" * 20), (f"k{number}", "w" * 20))
        roll(log)
    clean(log)
    assert [key for _, key, _ in pairs(log)] == [f"k{number}" for number in range(12)]
    assert 2 <= len(log.segments) - 1 < 12
    assert all(segment.size <= 700 for segment in log.segments)
    assert sorted(name for name in names(log) if name.endswith(".log")) == sorted(
        f"{segment.base_offset:020d}.log" for segment in log.segments
    )
    assert pairs(reopen(log.files, config, recovery_point=log.log_end_offset)) == pairs(log)


def test_readers_of_a_replaced_segment_finish_undisturbed() -> None:
    log = new_log()
    write(log, ("a", "1"), ("a", "2"))
    roll(log)
    piece = log.read(0, 1000, log.log_end_offset)
    assert piece is not None
    before = piece.read()
    task = cleaner(log).run()
    for step in task:
        if step is not None:
            step()
        assert piece.read() == before


def test_a_driver_that_calls_no_step_only_waits_longer() -> None:
    log = new_log()
    write(log, ("a", "1"), ("a", "2"))
    roll(log)
    for _ in cleaner(log).run():
        pass
    assert pairs(log) == [(1, "a", "2")]


# ── tombstones ──


def test_a_tombstone_stays_until_its_delete_horizon_and_then_goes() -> None:
    log = new_log()
    write(log, ("a", "1"), ("b", "1"))
    write(log, ("a", None), timestamp=150)
    roll(log)
    clean(log, now_ms=NOW)
    assert pairs(log) == [(1, "b", "1"), (2, "a", None)]
    with_horizon = [header for _, header in batches(log) if header.has_delete_horizon]
    assert [header.base_timestamp for header in with_horizon] == [LATER]
    assert records(log)[-1].timestamp == 150, "its own time is still told"

    clean(log, now_ms=LATER - 1)
    assert pairs(log) == [(1, "b", "1"), (2, "a", None)]
    clean(log, now_ms=LATER)
    assert pairs(log) == [(1, "b", "1")]


def test_a_horizon_once_given_does_not_move() -> None:
    log = new_log()
    write(log, ("a", None), ("b", None), ("c", "1"))
    roll(log)
    clean(log, now_ms=NOW)
    write(log, ("a", "2"))
    roll(log)
    clean(log, now_ms=NOW + 500)
    horizons = [header.base_timestamp for _, header in batches(log) if header.has_delete_horizon]
    assert horizons == [LATER]
    assert pairs(log) == [(1, "b", None), (2, "c", "1"), (3, "a", "2")]


def test_a_tombstone_past_the_end_of_a_full_map_stays_because_its_value_does() -> None:
    log = new_log()
    write(log, ("a", "1"), ("b", "1"), ("c", "1"), ("a", None))
    roll(log)
    for now_ms in (NOW, LATER):
        clean(log, now_ms=now_ms, key_map_bytes_max=2 * (ENTRY_BYTES + 1))
    assert pairs(log) == [(0, "a", "1"), (1, "b", "1"), (2, "c", "1"), (3, "a", None)]


def test_the_tombstone_of_a_key_that_came_back_goes_at_once() -> None:
    log = new_log()
    write(log, ("a", None))
    write(log, ("a", "1"))
    roll(log)
    clean(log)
    assert pairs(log) == [(1, "a", "1")]


# ── transactions ──


def test_records_of_an_aborted_transaction_go_and_hide_nothing() -> None:
    log = new_log()
    write(log, ("a", "committed"))
    write(log, ("a", "aborted"), ("b", "aborted"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 1, commit=False)
    write(log, ("c", "1"))
    roll(log)
    clean(log)
    assert pairs(log) == [(0, "a", "committed"), (4, "c", "1")]


def test_a_transaction_whose_abort_lies_past_the_cleaned_part_is_known_to_be_aborted() -> None:
    log = new_log()
    write(log, ("a", "committed"))
    write(log, ("a", "aborted"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    roll(log)
    end_transaction(log, 1, commit=False)
    clean(log)
    assert pairs(log) == [(0, "a", "committed")]


def test_an_open_transaction_bounds_what_is_cleaned() -> None:
    log = new_log()
    write(log, ("a", "1"), ("a", "2"))
    roll(log)
    write(log, ("a", "3"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    roll(log)
    write(log, ("a", "4"))
    roll(log)
    assert dirty_part(log).end == 2
    clean(log)
    assert pairs(log) == [(1, "a", "2"), (2, "a", "3"), (3, "a", "4")]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_stays_as_long_as_its_transaction_and_then_until_its_horizon(commit: bool) -> None:
    log = new_log()
    write(log, ("a", "1"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 1, commit=commit)
    write(log, ("a", "2"), producer_id=1, producer_epoch=0, base_sequence=1, transactional=True)
    end_transaction(log, 1, commit=True)
    write(log, ("z", "1"))
    roll(log)

    clean(log, now_ms=NOW)
    assert [record.offset for record in records(log, control=True)] == [1, 3], "the data was met in this round"
    clean(log, now_ms=NOW)
    assert [record.offset for record in records(log, control=True)] == [1, 3], "the first has its horizon now"
    assert [header.base_timestamp for _, header in batches(log) if header.has_delete_horizon] == [LATER]
    clean(log, now_ms=LATER)
    assert [record.offset for record in records(log, control=True)] == [3], "the second still has its record"
    assert pairs(log) == [(2, "a", "2"), (4, "z", "1")]


def test_the_index_of_aborted_transactions_forgets_those_that_are_gone() -> None:
    log = new_log()
    write(log, ("a", "1"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 1, commit=False)
    write(log, ("a", "2"), producer_id=1, producer_epoch=0, base_sequence=1)
    roll(log)
    clean(log)
    assert [txn.last_offset for txn in log.segments[0].aborted.between(0, 100)[0]] == [1], "a reader may still meet it"
    clean(log, cleaned_to=3)
    assert log.segments[0].aborted.between(0, 100)[0] == []


def test_the_marker_that_fences_a_producer_stays_as_a_header() -> None:
    log = new_log()
    write(log, ("a", "1"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 1, commit=True, epoch=1)
    write(log, ("a", "2"))
    roll(log)
    for now_ms in (NOW, NOW, LATER, LATER):
        clean(log, now_ms=now_ms)
    assert [(header.base_offset, header.record_count) for _, header in batches(log)] == [(1, 0), (2, 1)]


# ── producers ──


def test_the_next_sequence_of_a_producer_survives_without_any_snapshot() -> None:
    log = new_log()
    write(log, ("a", "1"), ("b", "1"), producer_id=1, producer_epoch=3, base_sequence=0)
    write(log, ("a", "2"), ("b", "2"), producer_id=1, producer_epoch=3, base_sequence=2)
    write(log, ("a", "3"), ("b", "3"))
    roll(log)
    clean(log)
    assert pairs(log) == [(4, "a", "3"), (5, "b", "3")]
    for name in names(log):
        if name.endswith(".snapshot"):
            log.files.remove(f"{DIRECTORY}/{name}")
    again = reopen(log.files, recovery_point=log.log_end_offset)
    entry = again.producers.get(1)
    assert entry is not None
    assert (entry.epoch, entry.next_sequence) == (3, 4)
    with pytest.raises(OutOfOrderSequence):
        write(again, ("a", "x"), producer_id=1, producer_epoch=3, base_sequence=5)


def test_the_last_batch_of_an_expired_producer_goes() -> None:
    log = new_log()
    write(log, ("a", "1"), producer_id=1, producer_epoch=0, base_sequence=0)
    write(log, ("a", "2"))
    roll(log)
    for now_ms in (0, 1):
        log.producers.expire(now_ms=now_ms, expiration_ms=1)
    clean(log)
    assert [header.base_offset for _, header in batches(log)] == [1]


# ── bounded memory, bounded steps ──


def test_a_full_map_cleans_a_part_and_the_next_rounds_the_rest() -> None:
    log = new_log()
    for value in range(3):
        write(log, *((f"k{number}", str(value)) for number in range(10)))
        roll(log)
    room_for_four = 4 * (ENTRY_BYTES + 2)
    cleaned_to, rounds = 0, 0
    while cleaned_to < dirty_part(log, cleaned_to=cleaned_to).end:
        reached = clean(log, cleaned_to=cleaned_to, key_map_bytes_max=room_for_four).cleaned_to
        assert reached > cleaned_to
        assert last_values(records(log)) == {f"k{number}".encode(): b"2" for number in range(10)}
        cleaned_to, rounds = reached, rounds + 1
    assert rounds > 2
    assert pairs(log) == [(20 + number, f"k{number}", "2") for number in range(10)]


def test_a_map_without_room_still_takes_one_key() -> None:
    log = new_log()
    write(log, ("a", "1"), ("a", "2"), ("b", "1"))
    roll(log)
    assert clean(log, key_map_bytes_max=0).cleaned_to == 2
    assert pairs(log) == [(1, "a", "2"), (2, "b", "1")]
    assert clean(log, cleaned_to=2, key_map_bytes_max=0).cleaned_to == 3


def test_a_big_batch_is_walked_in_several_steps() -> None:
    def steps_of(count: int) -> int:
        log = new_log()
        write(log, *((f"k{number % 7}", "v") for number in range(count)))
        roll(log)
        steps = sum(1 for _ in cleaner(log).run())
        assert len(records(log)) == 7
        return steps

    slices = 10
    assert steps_of(RECORDS_PER_SLICE * slices) >= steps_of(10) + 2 * (slices - 1)


# ── things that come in between ──


def test_a_round_that_is_given_up_leaves_the_log_as_it_was() -> None:
    log = new_log()
    for value in range(3):
        write(log, *((f"k{number}", str(value)) for number in range(10)))
        roll(log)
    before, files_before = pairs(log), names(log)
    task = cleaner(log).run()
    while not any(name.endswith(".cleaned") for name in names(log)):
        next(task)
    task.close()
    assert pairs(log) == before
    assert names(log) == files_before
    clean(log)
    assert len(pairs(log)) == 10


def test_a_round_ends_when_retention_takes_its_segments() -> None:
    log = new_log()
    for value in range(3):
        write(log, ("a", str(value)), ("b", str(value)))
        roll(log)
    task = cleaner(log).run()
    while not any(name.endswith(".cleaned") for name in names(log)):
        next(task)
    log.advance_log_start(2)
    before = pairs(log)
    for step in task:
        if step is not None:
            step()
    assert pairs(log) == before
    assert not [name for name in names(log) if name.endswith((".cleaned", ".swap"))]


def steps_with_retention_after(stop_at: int, log_start: int, removed_later: int) -> int:
    """A round during which, after that step, the log's start moves; how many steps it took.

    The files of the segments that it leaves behind are removed so many steps later.
    """
    with SimFiles() as files:
        log = new_log(files)
        for number in range(4):
            write(log, ("a", str(number)), (f"only{number}", "x"))
            roll(log)
        write(log, ("tail", "x"))
        gone: list[LogSegment] = []
        steps = 0
        for step in cleaner(log).run():
            if step is not None:
                step()
            if steps == stop_at:
                gone = log.advance_log_start(log_start)
            if steps == stop_at + removed_later:
                for segment in gone:
                    remove_segment_files(files, segment)
            steps += 1
        if 0 <= stop_at < steps:
            seen = {key: value for offset, key, value in pairs(log) if offset >= log_start}
            left = {"only2": "x", "only3": "x", "a": "3", "tail": "x"} if log_start == 4 else {"tail": "x"}
            assert seen == left
            assert {f"{DIRECTORY}/{name}" for name in names(log) if name.endswith(".log")} == {
                segment.path for segment in log.segments
            }
        return steps


@pytest.mark.parametrize("log_start", [pytest.param(4, id="into the middle"), pytest.param(8, id="past all of it")])
@pytest.mark.parametrize("removed_later", [0, 1])
def test_retention_at_any_step_brings_no_segment_back_and_takes_no_other(log_start: int, removed_later: int) -> None:
    for stop_at in range(steps_with_retention_after(-2, log_start, 0) - removed_later):
        steps_with_retention_after(stop_at, log_start, removed_later)


def steps_of_transactions_with_retention_after(stop_at: int) -> int:
    with SimFiles() as files:
        log = new_log(files)
        for number in range(4):
            write(log, ("a", str(number)), producer_id=7, producer_epoch=0, base_sequence=number, transactional=True)
            end_transaction(log, 7, commit=False)
            write(log, ("b", str(number)))
            roll(log)
        sync(log)
        steps = 0
        for step in cleaner(log).run():
            if step is not None:
                step()
            if steps == stop_at:
                for segment in log.advance_log_start(6):
                    set_aside_segment_files(files, segment)
            steps += 1
        assert [value for _, _, value in pairs(log) if value is not None][-1] == "3"
        return steps


def test_retention_at_any_step_takes_no_index_for_a_damaged_one() -> None:
    for stop_at in range(steps_of_transactions_with_retention_after(-1)):
        steps_of_transactions_with_retention_after(stop_at)


def steps_with_truncation_after(stop_at: int, end: int) -> int:
    """A round during which the log is truncated, as by an unclean leader election, and goes on."""
    with SimFiles() as files:
        log = new_log(files)
        for number in range(3):
            write(log, ("a", str(number)), (f"only{number}", "x"))
            roll(log)
        write(log, ("tail", "x"))
        sync(log)
        steps = 0
        for step in cleaner(log).run():
            if step is not None:
                step()
            if steps == stop_at:
                truncate_log(log, end, 0)
                write(log, ("new", "1"), ("new", "2"))
            steps += 1
        if 0 <= stop_at < steps:
            assert pairs(log)[-2:] == [(end, "new", "1"), (end + 1, "new", "2")]
            write(log, ("newer", "x"))
            sync(log)
            again = reopen(files, recovery_point=log.log_end_offset)
            assert pairs(again)[-3:] == [(end, "new", "1"), (end + 1, "new", "2"), (end + 2, "newer", "x")]
            assert again.log_end_offset == end + 3
        return steps


@pytest.mark.parametrize("end", [2, 4, 6])
def test_truncation_at_any_step_ends_the_round(end: int) -> None:
    for stop_at in range(steps_with_truncation_after(-1, end)):
        steps_with_truncation_after(stop_at, end)


def test_the_horizon_of_an_endless_delete_retention_fits_the_format() -> None:
    log = new_log(config=replace(COMPACTED, delete_retention_ms=2**63 - 1))
    write(log, ("a", "1"))
    write(log, ("a", None))
    roll(log)
    clean(log)
    assert [header.base_timestamp for _, header in batches(log)] == [2**63 - 1]
    clean(log, now_ms=2**62)
    assert pairs(log) == [(1, "a", None)]


def test_a_flipped_bit_stops_the_round_and_is_not_copied() -> None:
    with SimFiles() as files:
        log = new_log(files)
        write(log, ("a", "1"), ("a", "2"))
        roll(log)
        write(log, ("b", "1"), ("b", "2"))
        roll(log)
        files.flip_bit(log.segments[1].path, byte=70)
        with pytest.raises(CorruptLog):
            clean(log)
        assert not [name for name in names(log) if name.endswith(".cleaned")]
        assert log.segments[1].holes, "the damage is known now"
        assert dirty_part(log).end == 2, "and the next round ends before it"
        clean(log)
        assert log.segments[0].size < log.segments[1].size


def test_a_full_disk_stops_the_round_and_nothing_else() -> None:
    with SimFiles() as files:
        log = new_log(files)
        write(log, *((f"k{number}", "x" * 50) for number in range(50)))
        write(log, *((f"k{number}", "y" * 50) for number in range(50)))
        roll(log)
        before = pairs(log)
        used = sum(len(files.read(f"{DIRECTORY}/{name}")) for name in names(log))
        files.capacity_bytes = used + 1000
        with pytest.raises(DiskFull):
            clean(log)
        assert pairs(log) == before
        assert not [name for name in names(log) if name.endswith(".cleaned")]
        files.capacity_bytes = None
        clean(log)
        assert len(pairs(log)) == 50


def test_an_error_in_the_middle_of_a_swap_is_left_for_the_next_opening() -> None:
    with SimFiles() as files:
        log = new_log(files)
        write(log, ("a", "1"), ("a", "2"))
        roll(log)
        sync(log)
        files.fail("sync_dir", nth=3)
        with pytest.raises(StorageError):
            clean(log)
        with pytest.raises(StorageError, match="restart"):
            clean(log)
        assert pairs(log) == [(1, "a", "2")]
        assert pairs(reopen(files, recovery_point=2)) == [(1, "a", "2")]


# ── whatever is written ──

key = st.sampled_from(["a", "b", "c", "d", "e", None])
value = st.one_of(st.none(), st.text("xyz", max_size=30))
operation = st.one_of(
    st.tuples(st.just("plain"), st.lists(st.tuples(key, value), min_size=1, max_size=6), st.sampled_from(Codec)),
    st.tuples(st.just("txn"), st.lists(st.tuples(key, value), min_size=1, max_size=3), st.integers(1, 3)),
    st.tuples(st.just("end"), st.booleans(), st.integers(1, 3)),
    st.tuples(st.just("roll"), st.none(), st.none()),
    st.tuples(st.just("clean"), st.integers(0, 700), st.sampled_from([1 << 20, 3 * (ENTRY_BYTES + 1)])),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


class History:
    """A log, and beside it the committed records in the order of their offsets."""

    def __init__(self) -> None:
        self.config = replace(COMPACTED, segment_bytes=1500)
        self.log = new_log(MemoryFiles(), self.config)
        self.cleaned_to = 0
        self.now_ms = NOW
        self.committed: dict[int, tuple[str | None, str | None]] = {}
        self.pending: dict[int, dict[int, tuple[str | None, str | None]]] = {}
        self.sequences: dict[int, int] = {}

    def plain(self, pairs: list[tuple[str | None, str | None]], codec: int) -> None:
        header = write(self.log, *pairs, codec=codec)
        self.committed |= {header.base_offset + number: pair for number, pair in enumerate(pairs)}

    def txn(self, pairs: list[tuple[str | None, str | None]], pid: int) -> None:
        sequence = self.sequences.get(pid, 0)
        header = write(self.log, *pairs, producer_id=pid, producer_epoch=0, base_sequence=sequence, transactional=True)
        self.sequences[pid] = sequence + len(pairs)
        written = {header.base_offset + number: pair for number, pair in enumerate(pairs)}
        self.pending.setdefault(pid, {}).update(written)

    def end(self, commit: bool, pid: int) -> None:
        end_transaction(self.log, pid, commit=commit)
        written = self.pending.pop(pid, {})
        if commit:
            self.committed |= written

    def roll(self, *_: None) -> None:
        if self.log.active.size:
            roll(self.log)

    def clean(self, passed_ms: int, key_map_bytes_max: int) -> None:
        self.now_ms += passed_ms
        round_ = clean(self.log, cleaned_to=self.cleaned_to, now_ms=self.now_ms, key_map_bytes_max=key_map_bytes_max)
        self.cleaned_to = round_.cleaned_to

    def restart(self, *_: None) -> None:
        sync(self.log)
        self.log = reopen(self.log.files, self.config, recovery_point=self.log.log_end_offset)
        self.log.producers.high_watermark_advanced(self.log.log_end_offset)

    def visible(self) -> dict[int, tuple[str | None, str | None]]:
        """What a reader of committed data sees: it skips what the index calls aborted."""
        aborted = [txn for segment in self.log.segments for txn in segment.aborted.between(0, 1 << 60)[0]]
        seen: dict[int, tuple[str | None, str | None]] = {}
        for batch, header in batches(self.log):
            if header.is_control or any(
                txn.producer_id == header.producer_id and txn.first_offset <= header.base_offset <= txn.last_offset
                for txn in aborted
            ):
                continue
            for record in decode_records(batch, header):
                key = None if record.key is None else record.key.decode()
                seen[record.offset] = (key, None if record.value is None else record.value.decode())
        return {offset: pair for offset, pair in seen.items() if offset not in self._undecided()}

    def _undecided(self) -> set[int]:
        return {offset for written in self.pending.values() for offset in written}


def latest(seen: dict[int, tuple[str | None, str | None]]) -> dict[str, str]:
    last = {key: value for _, (key, value) in sorted(seen.items()) if key is not None}
    return {key: value for key, value in last.items() if value is not None}


@settings(max_examples=150, deadline=None)
@given(st.lists(operation, max_size=30))
def test_readers_end_up_with_the_same_values_whatever_was_written_and_cleaned(steps: list) -> None:
    history = History()
    for name, first, second in [*steps, ("roll", None, None), ("clean", 0, 1 << 20), ("restart", None, None)]:
        getattr(history, name)(first, second)
        seen = history.visible()
        assert latest(seen) == latest(history.committed)
        assert seen.items() <= history.committed.items(), "nothing moves, nothing is made up"
        assert history.log.log_end_offset == history.log.active.next_offset
    for pid, sequence in history.sequences.items():
        entry = history.log.producers.get(pid)
        assert entry is not None
        assert entry.next_sequence == sequence


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.tuples(key, value), min_size=1, max_size=6), min_size=1, max_size=12))
def test_a_cleaned_log_has_one_record_a_key(written: list) -> None:
    log = new_log()
    for pairs_of_batch in written:
        write(log, *pairs_of_batch)
    roll(log)
    clean(log)
    found = [record.key for record in records(log)]
    assert len(found) == len(set(found))
