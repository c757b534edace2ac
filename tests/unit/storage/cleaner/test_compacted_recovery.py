"""Recovery of compacted logs: a gap that compaction left, or records that a power loss took?"""

from dataclasses import replace
from uuid import UUID

import pytest

from headrace.config.values import LogConfig
from headrace.model.ids import TopicPartition
from headrace.records.batch import parse_header
from headrace.records.builder import NewRecord, build_batch
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.log import Log
from headrace.storage.log_append import append_copy
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.producer.producer_snapshot_file import snapshot_offsets, snapshot_path
from headrace.storage.segment.segment_replacement import set_aside_segment_files
from headrace.testing import SimFiles
from tests.unit.storage.cleaner.compaction_kit import (
    COMPACTED,
    DELETE_RETENTION_MS,
    DIRECTORY,
    clean,
    cleaner,
    end_transaction,
    pairs,
    records,
    roll,
    sync,
    write,
)

PARTITION = TopicPartition("t", 0)
SYNCED, UNSYNCED = 4, 3
LOST_POWER = Checkpoint(same_boot_as_last_run=False)


def compacted_log(files: SimFiles, config: LogConfig = COMPACTED) -> Log:
    files.make_dir(DIRECTORY)
    files.sync_dir("/")
    files.sync_dir("/data")
    return Log.create(files, DIRECTORY, config, now_ms=0)


def copy(log: Log, offset: int) -> None:
    batch = memoryview(bytearray(build_batch([NewRecord(1, b"k", b"v")], base_offset=offset, leader_epoch=0)))
    append_copy(log, batch, parse_header(batch), 0)


def lose_the_end_of_the_first_segment(files: SimFiles, log: Log) -> None:
    """The directory entry of the second segment reaches the disk before the last records of the first one do."""
    for number in range(SYNCED):
        write(log, (f"key {number}", "synced"))
    sync(log)
    for number in range(UNSYNCED):
        write(log, (f"key {number}", "not synced"))
    roll(log)
    files.sync_dir(DIRECTORY)
    files.lose_power()


def test_d3_compacted_log_ends_where_a_power_loss_took_records() -> None:
    with SimFiles() as files:
        lose_the_end_of_the_first_segment(files, compacted_log(files))
        log = open_log(files, DIRECTORY, COMPACTED, LOST_POWER, now_ms=0)
        # At a higher end, a follower would fetch what comes behind, and be in sync without the lost records.
        assert log.log_end_offset == SYNCED
        assert [segment.base_offset for segment in log.segments] == [0]
        assert len(pairs(log)) == SYNCED


@pytest.mark.parametrize("has_boot_id", [True, False])
def test_data_directory_tells_a_loss_from_a_gap_of_kafka(has_boot_id: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_boot_id:
        monkeypatch.setattr(SimFiles, "boot_id", lambda self: "")
    with SimFiles() as files:
        files.make_dir("/data")
        files.sync_dir("/")
        log_dir = LogDirectory(files, "/data")
        log_dir.begin_writing()
        log_dir.end_recovery()
        log = log_dir.create(PARTITION, UUID(int=7), COMPACTED, now_ms=0)
        lose_the_end_of_the_first_segment(files, log)
        assert LogDirectory(files, "/data").open(PARTITION, COMPACTED, now_ms=0).log_end_offset == SYNCED


@pytest.mark.parametrize("checkpoint", [LOST_POWER, Checkpoint()])
def test_log_cleaned_above_the_recovery_point_is_whole(checkpoint: Checkpoint) -> None:
    with SimFiles() as files:
        log = compacted_log(files)
        for _ in range(3):
            write(log, ("key", "value"))
            write(log, ("key", "value"))
            roll(log)
        copy(log, 20)  # a follower gets no record between 6 and 20
        roll(log)
        copy(log, 30)
        sync(log)
        clean(log)
        before = pairs(log)
        files.lose_power()
        log = open_log(files, DIRECTORY, COMPACTED, checkpoint, now_ms=0)
        assert log.log_end_offset == 31
        assert pairs(log) == before


def test_gap_at_the_end_of_a_segment_that_kafka_compacted_is_not_a_loss() -> None:
    with SimFiles() as files:
        lose_the_end_of_the_first_segment(files, compacted_log(files))
        log = open_log(files, DIRECTORY, COMPACTED, Checkpoint(same_boot_as_last_run=False, is_kafkas=True), now_ms=0)
        assert log.log_end_offset == SYNCED + UNSYNCED


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_whose_marker_is_compacted_does_not_open_again(commit: bool) -> None:
    """A snapshot between the data and the marker says that it is open."""
    config = replace(COMPACTED, segment_bytes=1000)
    with SimFiles() as files:
        log = compacted_log(files, config)
        write(log, ("key", "1"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        write(log, ("filler 1", "x" * 600))  # no two segments are merged
        roll(log)
        between = log.log_end_offset
        end_transaction(log, 7, commit=commit)
        write(log, ("filler 2", "x" * 600))
        write(log, ("key", "2"), producer_id=7, producer_epoch=0, base_sequence=1)
        roll(log)
        write(log, ("key", "3"))
        sync(log)
        for now_ms in (200, 200, 200 + DELETE_RETENTION_MS):
            clean(log, now_ms=now_ms)
        assert not records(log, control=True), "the marker is gone"
        for offset in snapshot_offsets(files, DIRECTORY):
            if offset > between:
                files.flip_bit(snapshot_path(DIRECTORY, offset), byte=8)
        again = open_log(files, DIRECTORY, config, Checkpoint(recovery_point=log.log_end_offset), now_ms=0)
        again.producers.high_watermark_advanced(again.log_end_offset)
        assert again.producers.first_unstable_offset is None, "read_committed consumers would wait there"


def steps_with_retention_and_power_loss_after(stop_at: int) -> int:
    """The files that retention removes are gone; the log start and the recovery point are not on disk yet."""
    config = replace(COMPACTED, segment_bytes=1000)
    with SimFiles() as files:
        log = compacted_log(files, config)
        for number in range(4):
            write(log, ("key", f"{number}"), (f"filler {number}", "x" * 600))
            roll(log)
        write(log, ("key", "last"))
        sync(log)
        steps = 0
        for step in cleaner(log).run():
            if step is not None:
                step()
            if steps == stop_at:
                for segment in log.advance_log_start(5):
                    set_aside_segment_files(files, segment)
                files.sync_dir(DIRECTORY)
                break
            steps += 1
        files.lose_power()
        again = open_log(files, DIRECTORY, config, LOST_POWER, now_ms=0)
        assert again.log_end_offset == 9
        assert {(8, "key", "last"), (7, "filler 3", "x" * 600)} <= set(pairs(again))
        return steps


def test_retention_and_a_power_loss_at_any_step_of_compaction_lose_no_record() -> None:
    for stop_at in range(steps_with_retention_and_power_loss_after(-1)):
        steps_with_retention_and_power_loss_after(stop_at)


def test_segment_that_could_not_be_removed_is_not_taken_for_the_end_of_the_log() -> None:
    with SimFiles() as files:
        log = compacted_log(files)
        for number in range(4):
            write(log, ("key", f"{number}"))
            roll(log)
        write(log, ("key", "last"))
        sync(log)
        for segment in log.advance_log_start(3)[1:]:
            set_aside_segment_files(files, segment)
        files.sync_dir(DIRECTORY)
        files.lose_power()
        checkpoint = Checkpoint(log_start_offset=3, same_boot_as_last_run=False)
        again = open_log(files, DIRECTORY, COMPACTED, checkpoint, now_ms=0)
        assert pairs(again) == [(3, "key", "3"), (4, "key", "last")]
