"""`headrace_request_errors_total`: every error in a response counts once, by API and code."""

from collections.abc import AsyncIterator
from struct import pack
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.handlers.cluster import metadata as metadata_handler
from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.core.controller.topic_control import NewTopic
from headrace.metadata.embedded import MemoryStore
from headrace.model.errors import ErrorCode
from headrace.process.runtime import SystemClock
from headrace.protocol.api import SERVED, ApiKey
from headrace.protocol.codec import message_class
from headrace.storage.io.memory_file_system import MemoryFiles
from tests.unit.broker.connection_kit import Peer, StandInServer, frame, until
from tests.unit.broker.handlers.handler_kit import build
from tests.unit.protocol.kio_messages import kio_bytes
from tests.unit.storage.log_kit import batch_of

E = ErrorCode
NOWHERE = {"topic": "nowhere"}
COMMIT = {
    "group_id": "g",
    "generation_id_or_member_epoch": 3,
    "member_id": "m",
    "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    clock = SystemClock()
    settings = Settings(
        listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),),
        data_dir="/data",
        storage="memory",
        broker_configs={"auto.create.topics.enable": "false"},
    )
    broker = Broker(settings, clock, MemoryFiles(), MemoryStore(clock))
    await broker.start()
    await broker.controller.create_topics([NewTopic("t", 2, 1)])
    try:
        yield broker
    finally:
        await broker.stop()


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    peer = StandInServer(broker.dispatcher).connect_by_tcp()
    yield peer
    peer.close()


async def ask(peer: Peer, api: ApiKey, version: int, /, **fields: Any) -> bytes:
    message = message_class(api, min(version, SERVED[api].highest), "request")
    tags = b"\x00" if version >= SERVED[api].first_flexible else b""
    header = pack(">hhih", api, version, 7, 1) + b"c" + tags
    await peer.send(frame(header + kio_bytes(build(message, fields))))
    return await peer.receive()


def counted(broker: Broker) -> dict[str, dict[str, int]]:
    return {
        api.name: {ErrorCode(code).name: count for code, count in counts.items()}
        for api, counts in broker.figures.errors.items()
        if counts
    }


def produced(*topics: str, records: bytes, acks: int = -1) -> dict[str, Any]:
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": records}]} for topic in topics]
    return {"acks": acks, "timeout": 1_000, "topic_data": rows}


def fetched(topic: str, **fields: Any) -> dict[str, Any]:
    return {
        "max_wait": 0,
        "min_bytes": 0,
        "topics": [{"topic": topic, "partitions": [{"partition": one} for one in (0, 1)]}],
        **fields,
    }


CASES: list[tuple[ApiKey, int, dict[str, Any], dict[str, int]]] = [
    (ApiKey.API_VERSIONS, 99, {}, {"UNSUPPORTED_VERSION": 1}),
    (ApiKey.API_VERSIONS, 3, {"client_software_name": "-", "client_software_version": "1"}, {"INVALID_REQUEST": 1}),
    (ApiKey.FIND_COORDINATOR, 4, {"key_type": 9, "coordinator_keys": ("a", "b")}, {"INVALID_REQUEST": 2}),
    (ApiKey.PRODUCE, 8, produced("t", "a", "b", records=batch_of(["x"])), {"UNKNOWN_TOPIC_OR_PARTITION": 2}),
    (ApiKey.PRODUCE, 8, produced("t", "t", records=batch_of(["x"]), acks=5), {"INVALID_REQUIRED_ACKS": 2}),
    (ApiKey.PRODUCE, 8, produced("t", records=b""), {"INVALID_RECORD": 1}),
    (ApiKey.FETCH, 11, fetched("nowhere"), {"UNKNOWN_TOPIC_OR_PARTITION": 2}),
    (ApiKey.FETCH, 11, fetched("t", session_id=77, session_epoch=5), {"FETCH_SESSION_ID_NOT_FOUND": 1}),
    (ApiKey.FETCH, 11, fetched("t"), {}),
    (ApiKey.METADATA, 9, {"topics": [{"name": "a"}, {"name": "t"}, {"name": "b"}]}, {"UNKNOWN_TOPIC_OR_PARTITION": 2}),
    (ApiKey.METADATA, 12, {"topics": [{"topic_id": UUID(int=5), "name": None}]}, {"UNKNOWN_TOPIC_ID": 1}),
    (ApiKey.METADATA, 9, {"topics": None}, {}),
    (ApiKey.DESCRIBE_GROUPS, 6, {"groups": ("a", "b", "c")}, {"COORDINATOR_NOT_AVAILABLE": 3}),
    (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        {"resources": [{"resource_type": 2, "resource_name": one} for one in ("a", "t", "b")]},
        {"UNKNOWN_TOPIC_OR_PARTITION": 2},
    ),
    (
        ApiKey.LIST_OFFSETS,
        6,
        {"replica_id": -1, "topics": [{"name": "a", "partitions": [{"partition_index": 0, "timestamp": -1}]}]},
        {"UNKNOWN_TOPIC_OR_PARTITION": 1},
    ),
    (ApiKey.DELETE_TOPICS, 5, {"topic_names": ("a", "b")}, {"UNKNOWN_TOPIC_OR_PARTITION": 2}),
    (ApiKey.CREATE_TOPICS, 5, {"topics": [{"name": "t", "num_partitions": 1}]}, {"TOPIC_ALREADY_EXISTS": 1}),
]


@pytest.mark.parametrize(("api", "version", "fields", "errors"), CASES)
async def test_response_counts_each_of_its_errors_once(
    broker: Broker, peer: Peer, api: ApiKey, version: int, fields: dict[str, Any], errors: dict[str, int]
) -> None:
    for times in (1, 2):
        await ask(peer, api, version, **fields)
        expected = {name: times * count for name, count in errors.items()}
        assert counted(broker) == ({api.name: expected} if expected else {})


async def test_group_requests_count_through_deferred_responses(broker: Broker, peer: Peer) -> None:
    await broker.groups.leader_of("g")
    for _ in range(3):  # the third is a repeated commit: the fast path
        await ask(peer, ApiKey.OFFSET_COMMIT, 7, **COMMIT)
    await ask(peer, ApiKey.HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m")
    (commits,) = counted(broker)["OFFSET_COMMIT"].values()
    assert commits == 3
    assert counted(broker)["HEARTBEAT"] == {"UNKNOWN_MEMBER_ID": 1}


async def test_produce_counts_errors_when_it_is_answered(broker: Broker, peer: Peer) -> None:
    """The second request takes the fast path. Neither is committed before its timeout."""
    partition = broker.partitions.get("t", 0)
    partition.set_high_watermark = lambda offset: None  # type: ignore[method-assign, assignment]
    request = produced("t", records=batch_of(["x"]))
    for times in (1, 2):
        header = pack(">hhih", ApiKey.PRODUCE, 8, 7, 1) + b"c"
        body = kio_bytes(build(message_class(ApiKey.PRODUCE, 8, "request"), request))
        await peer.send(frame(header + body))
        await until(lambda: bool(broker.produce.waits))
        broker.produce.expire(broker.clock.monotonic_ms() + 10_000)
        await peer.receive()
        assert counted(broker) == {"PRODUCE": {"REQUEST_TIMED_OUT": times}}


async def test_handler_that_fails_counts_once(broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(call: Any) -> None:
        raise ZeroDivisionError

    await ask(peer, ApiKey.METADATA, 12, topics=None)
    monkeypatch.setattr(metadata_handler, "reachable_brokers", broken)
    header = pack(">hhih", ApiKey.METADATA, 12, 7, 1) + b"c\x00"
    await peer.send(frame(header + kio_bytes(build(message_class(ApiKey.METADATA, 12, "request"), {"topics": None}))))
    await until(lambda: bool(counted(broker)))
    assert counted(broker) == {"METADATA": {"UNKNOWN_SERVER_ERROR": 1}}
