"""Bits that flip above the recovery point before a restart (D4, D5): corruption or half a write?

After a process crash every write is there in its order, so only the last one can be half. After a power loss pages may
have reached the disk in any order.
"""

import logging
from contextlib import suppress
from dataclasses import replace

import pytest

from headrace.config.values import LogConfig
from headrace.model.errors import CorruptLog
from headrace.records.batch import HEADER_BYTES
from headrace.storage.log import Log
from headrace.storage.log_loader import Checkpoint, open_log
from headrace.storage.log_truncation import restart_log_at
from headrace.storage.segment.corrupt_ranges import damaged_from
from headrace.testing import SimFiles
from tests.unit.storage.log_kit import CONFIG, append, batch_of, new_log, read_values

DIRECTORY = "/data/t-0"
BATCHES = 8
ONE_SEGMENT, SMALL_SEGMENTS = CONFIG, replace(CONFIG, segment_bytes=250)
CRASHED = Checkpoint(recovery_point=1)
LOST_POWER = Checkpoint(recovery_point=1, same_boot_as_last_run=False)
LOST_POWER_LATER = Checkpoint(recovery_point=BATCHES, same_boot_as_last_run=False)


def filled(files: SimFiles, config: LogConfig = ONE_SEGMENT) -> Log:
    files.make_dir("/data")
    log = new_log(files, config)
    for number in range(BATCHES):
        append(log, f"value {number}", producer_id=1, producer_epoch=0, base_sequence=number)
    return log


def batches(log: Log) -> list[tuple[str, int, int]]:
    """Path, position and size of each."""
    return [
        (segment.path, position, header.total_bytes)
        for segment in log.segments
        for position, header in segment.headers()
    ]


def readable(log: Log) -> list[str]:
    values: list[str] = []
    for offset in range(log.log_start_offset, log.log_end_offset):
        with suppress(CorruptLog):
            values += read_values(log, offset, limit=offset + 1)
    return values


@pytest.mark.parametrize("config", [ONE_SEGMENT, SMALL_SEGMENTS], ids=["one segment", "small segments"])
@pytest.mark.parametrize("number", range(1, BATCHES - 1))
def test_d5_flipped_bit_behind_the_last_sync_is_a_hole_after_a_process_crash(
    number: int, config: LogConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with SimFiles() as files:
        path, position, size = batches(filled(files, config))[number]
    for byte in range(size):
        caplog.clear()
        with SimFiles() as files:
            filled(files, config)
            files.flip_bit(path, byte=position + byte, bit=byte % 8)
            log = open_log(files, DIRECTORY, config, CRASHED, now_ms=0)
            if damaged_from(log) is None:
                assert 12 <= byte < 16, "only the leader epoch, which the other batches correct"
                continue
            assert damaged_from(log) == number, f"byte {byte}"
            assert log.log_end_offset == BATCHES
            assert readable(log) == [f"value {one}" for one in range(BATCHES) if one != number], f"byte {byte}"
            assert "corrupt" in caplog.text
            assert append(log, "next").base_offset == BATCHES


@pytest.mark.parametrize("config", [ONE_SEGMENT, SMALL_SEGMENTS], ids=["one segment", "small segments"])
def test_d5_hole_behind_the_last_sync_stays_over_restarts(config: LogConfig) -> None:
    with SimFiles() as files:
        path, position, _ = batches(filled(files, config))[4]
        files.flip_bit(path, byte=position + 70)
        for checkpoint in (CRASHED, CRASHED, Checkpoint(recovery_point=BATCHES), LOST_POWER_LATER):
            log = open_log(files, DIRECTORY, config, checkpoint, now_ms=0)
            assert readable(log) == [f"value {one}" for one in range(BATCHES) if one != 4]


@pytest.mark.parametrize("config", [ONE_SEGMENT, SMALL_SEGMENTS], ids=["one segment", "small segments"])
def test_d4_bad_batch_behind_the_last_sync_ends_the_log_after_a_power_loss(config: LogConfig) -> None:
    with SimFiles() as files:
        path, position, _ = batches(filled(files, config))[4]
        files.flip_bit(path, byte=position + 70)
        log = open_log(files, DIRECTORY, config, LOST_POWER, now_ms=0)
        assert (read_values(log), damaged_from(log)) == ([f"value {one}" for one in range(4)], None)


@pytest.mark.parametrize("room", [b"", b"\x01" * 4096], ids=["end of file", "preallocated"])
def test_d4_last_write_that_is_torn_is_truncated_after_a_process_crash(room: bytes) -> None:
    with SimFiles() as files:
        path, position, size = batches(filled(files))[-1]
        whole = files.read(path)
    for kept in range(1, size):
        with SimFiles() as files:
            filled(files)
            files.replace(path, whole[: position + kept] + room)
            log = open_log(files, DIRECTORY, CONFIG, CRASHED, now_ms=0)
            assert (len(read_values(log)), damaged_from(log)) == (BATCHES - 1, None), f"{kept} bytes"


@pytest.mark.parametrize("room", [b"", b"\x01" * 4096], ids=["end of file", "preallocated"])
def test_d4_torn_batch_with_a_batch_for_a_value_is_truncated(room: bytes) -> None:
    with SimFiles() as files:
        log = filled(files)
        inner = bytearray(batch_of(["inner"]))
        inner[:8] = (BATCHES + 1_000).to_bytes(8)
        outer = bytearray(batch_of(["as long as the inner batch and more" * 10]))
        position = log.active.size
        head = outer[:HEADER_BYTES]
        head[:8] = BATCHES.to_bytes(8)
        files.open(log.active.path).append(bytes(head) + b"12345678" + bytes(inner) + b"the rest" + room)
        again = open_log(files, DIRECTORY, CONFIG, CRASHED, now_ms=0)
        assert (again.active.size, damaged_from(again)) == (position, None)


def test_d5_hole_and_torn_write_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    with SimFiles() as files:
        log = filled(files)
        path, position, _ = batches(log)[4]
        last = batches(log)[-1]
        files.flip_bit(path, byte=position + 70)
        files.replace(path, files.read(path)[: last[1] + 50])
        with caplog.at_level(logging.WARNING):
            again = open_log(files, DIRECTORY, CONFIG, CRASHED, now_ms=0)
        assert (damaged_from(again), again.log_end_offset) == (4, BATCHES - 1)
        assert "truncated 50 bytes" in caplog.text


@pytest.mark.parametrize("number", [0, 1])
def test_d5_segment_that_lost_its_end_is_a_hole_after_a_process_crash(number: int) -> None:
    with SimFiles() as files:
        log = filled(files, SMALL_SEGMENTS)
        segment, following = log.segments[number], log.segments[number + 1].base_offset
        last = [position for position, _ in segment.headers()][-1]
        files.replace(segment.path, files.read(segment.path)[:last])
        again = open_log(files, DIRECTORY, SMALL_SEGMENTS, replace(CRASHED, recovery_point=0), now_ms=0)
        assert damaged_from(again) == following - 1
        assert readable(again) == [f"value {one}" for one in range(BATCHES) if one != following - 1]


@pytest.mark.parametrize("before", range(3))
def test_d5_corrupt_length_before_offset_2_to_the_32_hides_no_record(before: int) -> None:
    """The next batch is searched for by the first bytes of its offset, which change there."""
    base = 2**32 - before
    with SimFiles() as files:
        files.make_dir("/data")
        log = new_log(files)
        restart_log_at(log, base, 0)
        values = [f"value {number}" for number in range(BATCHES)]
        for value in values:
            append(log, value)
        for number, (path, position, _) in enumerate(batches(log)[:-1]):
            files.flip_bit(path, byte=position + 10, bit=3)  # of the length
            checkpoint = Checkpoint(recovery_point=base, log_start_offset=base)
            again = open_log(files, DIRECTORY, CONFIG, checkpoint, now_ms=0)
            assert readable(again) == [*values[:number], *values[number + 1 :]]
            files.flip_bit(path, byte=position + 10, bit=3)
