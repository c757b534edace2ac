"""Room ahead of a log's end, on a real disk: there while small batches are synced, and in nobody's way."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.records.batch import walk
from headrace.records.builder import NewRecord, build_batch
from headrace.storage.io.file_system import room_of
from headrace.storage.io.preallocation import PREALLOCATION_UNIT, ROUNDS_MIN
from headrace.testing import LocalBroker
from tests.integration.raw import RawConnection

TOPIC = "t"
BATCHES = 5 * ROUNDS_MIN
VERIFY = [sys.executable, "-m", "headrace.cli.main", "log", "verify"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(data_dir=tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "data" / f"{TOPIC}-0" / f"{0:020}.log"


def produce(broker: LocalBroker, first: int = 0) -> None:
    """Each is on disk before the next one comes."""
    with RawConnection(broker.port) as connection:
        if not first:
            assert connection.create_topic(TOPIC) == 0
        for number in range(first, first + BATCHES):
            batch = build_batch([NewRecord(1_700_000_000_000, None, b"value %d" % number)])
            assert connection.produce_error(TOPIC, batch) == (0, number)


def offsets(broker: LocalBroker) -> list[int]:
    with RawConnection(broker.port) as connection:
        return [header.base_offset for _, header in walk(connection.fetched(TOPIC))]


def test_small_batches_have_room_and_are_read_as_if_there_were_none(broker: LocalBroker, log: Path) -> None:
    produce(broker)
    assert log.stat().st_size % PREALLOCATION_UNIT == 0
    assert log.read_bytes().endswith(room_of(PREALLOCATION_UNIT))
    assert offsets(broker) == list(range(BATCHES))


def test_a_broker_that_stops_gives_it_back(broker: LocalBroker, log: Path) -> None:
    produce(broker)
    broker.stop()
    assert [header.base_offset for _, header in walk(log.read_bytes())] == list(range(BATCHES))
    assert sum(header.total_bytes for _, header in walk(log.read_bytes())) == log.stat().st_size


def test_a_broker_that_was_killed_finds_its_batches_and_no_damage(broker: LocalBroker, log: Path) -> None:
    produce(broker)
    broker.kill()
    assert log.read_bytes().endswith(room_of(PREALLOCATION_UNIT))
    broker.start()
    assert offsets(broker) == list(range(BATCHES))
    assert "WARNING" not in broker.output(), "room is no damage"
    produce(broker, BATCHES)
    assert offsets(broker) == list(range(2 * BATCHES))


def test_the_log_of_a_broker_that_was_killed_is_in_order(broker: LocalBroker, log: Path) -> None:
    produce(broker)
    broker.kill()
    done = subprocess.run([*VERIFY, str(log)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"{BATCHES} batches" in done.stderr
