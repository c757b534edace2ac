"""Fetches of bytes that this process has not read since it started: they are checked a bounded part at a time."""

from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest

from headrace.broker.handlers.data import fetch
from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.core.controller.topic_control import NewTopic
from headrace.metadata.embedded import MemoryStore
from headrace.model.errors import ErrorCode
from headrace.process.runtime import SystemClock
from headrace.protocol.api import ApiKey
from headrace.protocol.codec import message_class
from headrace.records.batch import parse_header
from headrace.storage import log_read
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.segment.log_segment import LogSegment
from tests.unit.broker.api.test_request_errors import ask
from tests.unit.broker.connection_kit import Peer, StandInServer
from tests.unit.protocol.kio_messages import kio_read
from tests.unit.storage.log_kit import batch_of

VERSION = 11
CORRELATION_ID_BYTES = 4
PARTITIONS, BATCHES = 4, 12


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    clock = SystemClock()
    settings = Settings(listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),), data_dir="/data", storage="memory")
    broker = Broker(settings, clock, MemoryFiles(), MemoryStore(clock))
    await broker.start()
    await broker.controller.create_topics([NewTopic("t", PARTITIONS, 1)])
    for index in range(PARTITIONS):
        partition = broker.partitions.get("t", index)
        for number in range(BATCHES):
            partition.append(memoryview(bytearray(batch_of([f"value {number:02}"]))), 1, clock.wall_ms())
        partition.log.active.checked.clear()  # as after a restart
    yield broker
    await broker.stop()


async def fetched(peer: Peer, offsets: list[int]) -> list[bytes]:
    rows = [{"partition": index, "fetch_offset": offset} for index, offset in enumerate(offsets)]
    topics = [{"topic": "t", "partitions": [{**row, "partition_max_bytes": 2**20} for row in rows]}]
    body = await ask(peer, ApiKey.FETCH, VERSION, max_wait=0, min_bytes=0, replica_id=-1, topics=topics)
    response: Any = kio_read(message_class(ApiKey.FETCH, VERSION, "response"), body[CORRELATION_ID_BYTES:])
    return [bytes(row.records or b"") for row in response.responses[0].partitions]


def next_offset(records: bytes, offset: int) -> int:
    position = 0
    while position < len(records):
        header = parse_header(records, position)
        offset, position = header.next_offset, position + header.total_bytes
    return offset


async def test_fetch_of_cold_partitions_checks_a_bounded_part(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_bytes = broker.partitions.get("t", 0).log.size_bytes // BATCHES
    for module in (fetch, log_read):
        monkeypatch.setattr(module, "CHECK_BYTES_MAX", 3 * batch_bytes)
    checked: list[int] = []
    original = LogSegment.check

    def noted(segment: LogSegment, start: int, end: int) -> int:
        good = original(segment, start, end)
        checked.append(good - start)
        return good

    monkeypatch.setattr(LogSegment, "check", noted)
    peer = StandInServer(broker.dispatcher).connect_by_tcp()
    offsets, total = [0] * PARTITIONS, 0
    while min(offsets) < BATCHES:
        checked.clear()
        offsets = [
            next_offset(records, offset) for records, offset in zip(await fetched(peer, offsets), offsets, strict=True)
        ]
        assert 0 < sum(checked) <= 3 * batch_bytes, "every fetch gets further, and none checks more"
        total += sum(checked)
    assert total == PARTITIONS * BATCHES * batch_bytes
    peer.close()


async def test_bug_in_one_partition_leaves_the_others_answered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StopIteration

    monkeypatch.setattr(broker.partitions.get("t", 1), "read", fail)
    before = broker.figures.errors[ApiKey.FETCH][ErrorCode.UNKNOWN_SERVER_ERROR]
    topics = [
        {
            "topic": "t",
            "partitions": [
                {"partition": index, "fetch_offset": 0, "partition_max_bytes": 2**20} for index in range(PARTITIONS)
            ],
        }
    ]
    with closing(StandInServer(broker.dispatcher).connect_by_tcp()) as peer:
        body = await ask(peer, ApiKey.FETCH, VERSION, max_wait=0, min_bytes=0, replica_id=-1, topics=topics)
    response: Any = kio_read(message_class(ApiKey.FETCH, VERSION, "response"), body[CORRELATION_ID_BYTES:])
    rows = response.responses[0].partitions
    assert [row.error_code for row in rows] == [
        ErrorCode.UNKNOWN_SERVER_ERROR if n == 1 else 0 for n in range(len(rows))
    ]
    assert all(row.records for row in rows if not row.error_code)
    assert broker.figures.errors[ApiKey.FETCH][ErrorCode.UNKNOWN_SERVER_ERROR] == before + 1
    assert any(record.exc_info for record in caplog.records), "with its traceback"
