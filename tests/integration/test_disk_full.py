"""A disk that fills up: clear refusals, reading goes on, and it heals by itself once there is room again."""

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.records.batch import walk
from headrace.records.builder import NewRecord, build_batch
from headrace.testing import LocalBroker
from tests.integration.raw import RawConnection

MIB = 1024 * 1024
DISK_BYTES = 24 * MIB
RECORD_BYTES = 200_000
SECONDS_MAX = 30.0
NONE, KAFKA_STORAGE_ERROR = 0, 56
SETTINGS = {"num.partitions": "1", "log.segment.bytes": str(MIB), "log.segment.delete.delay.ms": "0"}


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(mounting, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount a tmpfs: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def broker(small_disk) -> Iterator[LocalBroker]:
    with LocalBroker(data_dir=small_disk / "data", settings=SETTINGS) as one:
        yield one


@pytest.fixture
def connection(broker) -> Iterator[RawConnection]:
    with RawConnection(broker.port) as one:
        yield one


def record(number: int) -> bytes:
    value = random.Random(number).randbytes(RECORD_BYTES)
    return build_batch([NewRecord(1_700_000_000_000 + number, b"%d" % number, value)])


def fill(connection: RawConnection, topic: str, first: int = 0) -> tuple[int, int]:
    """Produce until it is refused; returns the offset that would have come next, and the refusal."""
    for number in range(first, first + DISK_BYTES // RECORD_BYTES + 1):
        code, offset = connection.produce_error(topic, record(number))
        if code != NONE:
            return number, code
        assert offset == number, "every acknowledgement counts on"
    raise AssertionError("more was acknowledged than the disk can hold")


def readable(connection: RawConnection, topic: str, first: int = 0) -> list[int]:
    """The offsets of everything that can be fetched from an offset on, with their content checked."""
    offsets: list[int] = []
    while data := connection.fetched(topic, (offsets[-1] + 1) if offsets else first):
        for position, header in walk(memoryview(data)):
            expected = record(header.base_offset)
            assert data[position + 21 : position + header.total_bytes] == expected[21:]
            offsets.append(header.base_offset)
    return offsets


def wait_until_accepted(connection: RawConnection, topic: str, number: int) -> int:
    """Offset of a record once it is taken again; the broker finds out by itself that there is room."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        code, offset = connection.produce_error(topic, record(number))
        if code == NONE:
            return offset
        assert code == KAFKA_STORAGE_ERROR
        assert time.monotonic() < deadline, "it never healed"


@pytest.fixture
def admin(broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def test_a_full_disk_refuses_records_and_goes_on_serving_what_it_has(broker, connection):
    assert connection.create_topic("t") == NONE
    end, code = fill(connection, "t")
    assert code == KAFKA_STORAGE_ERROR
    assert end > 50, "most of the disk was used before"
    assert readable(connection, "t") == list(range(end))
    assert broker.running
    free = os.statvfs(broker.data_dir)
    assert free.f_bavail * free.f_frsize > 0, "some room is kept for what heals the disk"


def test_deleting_a_topic_heals_a_full_disk(connection, admin):
    assert connection.create_topic("t") == connection.create_topic("doomed") == NONE
    connection.produce_error("t", record(0))
    _, code = fill(connection, "doomed")
    assert code == KAFKA_STORAGE_ERROR
    assert connection.produce_error("t", record(1))[0] == KAFKA_STORAGE_ERROR
    admin.delete_topics(["doomed"])["doomed"].result(SECONDS_MAX)
    assert wait_until_accepted(connection, "t", 1) == 1
    assert readable(connection, "t") == [0, 1]


def test_deleting_records_heals_a_full_disk(connection, admin):
    assert connection.create_topic("t") == NONE
    end, _ = fill(connection, "t")
    up_to = TopicPartition("t", 0, end - 10)
    admin.delete_records([up_to])[up_to].result(SECONDS_MAX)
    assert wait_until_accepted(connection, "t", end) == end
    assert readable(connection, "t", end - 10) == list(range(end - 10, end + 1))


def test_retention_heals_a_full_disk(small_disk):
    quick = SETTINGS | {"log.retention.check.interval.ms": "200"}
    with (
        LocalBroker(data_dir=small_disk / "data", settings=quick) as broker,
        RawConnection(broker.port) as connection,
    ):
        # By size alone: the records are of 2023, and their age would let all but the active segment go at any time.
        by_size = {"retention.bytes": str(12 * MIB), "retention.ms": "-1"}
        assert connection.create_topic("t", by_size) == NONE
        end = 0
        for number in range(2 * DISK_BYTES // RECORD_BYTES):
            assert wait_until_accepted(connection, "t", number) == number
            end = number + 1
        assert readable(connection, "t", end - 20) == list(range(end - 20, end))


def test_a_disk_that_somebody_else_fills_to_the_last_byte_heals_when_they_leave(small_disk, broker, connection):
    assert connection.create_topic("t") == NONE
    assert connection.produce_error("t", record(0)) == (NONE, 0)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(64 * 1024)):
                pass
        except OSError:
            pass
    end, code = fill(connection, "t", first=1)
    assert code == KAFKA_STORAGE_ERROR
    assert readable(connection, "t") == list(range(end))
    filler.unlink()
    assert wait_until_accepted(connection, "t", end) == end
    assert readable(connection, "t") == list(range(end + 1))


def test_a_full_disk_survives_a_kill_and_a_restart(broker):
    with RawConnection(broker.port) as connection:
        assert connection.create_topic("t") == NONE
        end, _ = fill(connection, "t")
    broker.kill()
    broker.start()
    with RawConnection(broker.port) as connection:
        assert readable(connection, "t") == list(range(end))
    with RawConnection(broker.port) as connection:
        code, _ = connection.produce_error("t", record(end))
        assert code in (NONE, KAFKA_STORAGE_ERROR)
