"""A start that fails after a kill -9, as a process: the next start still recovers the logs."""

import socket
from pathlib import Path

import pytest

from headrace.records.batch import walk
from headrace.records.builder import NewRecord, build_batch
from headrace.storage.io.preallocation import ROUNDS_MIN
from headrace.testing import LocalBroker
from headrace.testing.local.broker import HOST
from tests.integration.raw import RawConnection

TOPIC = "t"
BATCHES = 5 * ROUNDS_MIN  # enough for a preallocated tail, which only recovery removes


def produce(broker: LocalBroker, first: int) -> None:
    with RawConnection(broker.port) as connection:
        if not first:
            assert connection.create_topic(TOPIC) == 0
        for number in range(first, first + BATCHES):
            batch = build_batch([NewRecord(1_700_000_000_000, None, b"value %d" % number)])
            assert connection.produce_error(TOPIC, batch) == (0, number)


def test_port_in_use_after_kill_keeps_records(tmp_path: Path) -> None:
    with LocalBroker(data_dir=tmp_path / "data") as broker:
        produce(broker, 0)
        port = broker.port
        broker.kill()
        with socket.create_server((HOST, port)), pytest.raises(Exception, match="cannot listen"):
            broker.start()
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        broker.start()
        produce(broker, BATCHES)
        with RawConnection(broker.port) as connection:
            found = [header.base_offset for _, header in walk(connection.fetched(TOPIC))]
        assert found == list(range(2 * BATCHES))
        assert "WARNING" not in broker.output()
