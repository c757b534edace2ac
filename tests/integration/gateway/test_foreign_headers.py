"""Records whose headers have names that are not UTF-8: Kafka's brokers store them, and every reader gets past them."""

import json
import struct
from collections.abc import Iterator

import grpc
import httpx
import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.client.message_headers import UNREADABLE_NAME
from headrace.records.batch import batch_crc
from headrace.records.builder import NewRecord, build_batch
from headrace.rpc import headrace_pb2 as pb
from headrace.rpc import headrace_pb2_grpc as stubs
from headrace.testing import LocalBroker
from tests.integration.gateway.test_groups import events, join, take

WAIT_S = 60.0
NAME, FOREIGN_NAME = b"a-name", b"a-\xff\xfe\x80e"
_CRC_AT = 17
# Enough for the interpreter to specialize the call that reads headers.
BEFORE = [f"before {number}" for number in range(100)]
VALUES = [*BEFORE, "foreign", "after"]
WHOLE = [{"name": "a-name", "value": "x"}]
SHOWN = dict.fromkeys(VALUES, WHOLE) | {"foreign": [{"name": UNREADABLE_NAME, "value": None}]}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(gateway=True, settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture(scope="module")
def rpc(broker: LocalBroker) -> Iterator[stubs.KafkaBrokerStub]:
    with grpc.insecure_channel(broker.grpc_address) as channel:
        yield stubs.KafkaBrokerStub(channel)


@pytest.fixture
def filled(rest: httpx.Client, rpc: stubs.KafkaBrokerStub, topic: str) -> str:
    def put(batch: bytes) -> None:
        request = pb.ProduceRequest(topic=topic, partition=0, record_batch=batch)
        rpc.Produce(request, timeout=WAIT_S, wait_for_ready=True)

    headers = ((NAME.decode(), b"x"),)
    put(build_batch([NewRecord(1, None, value.encode(), headers) for value in BEFORE]))
    foreign = bytearray(build_batch([NewRecord(1, None, b"foreign", headers)]).replace(NAME, FOREIGN_NAME))
    struct.pack_into(">I", foreign, _CRC_AT, batch_crc(foreign))
    put(bytes(foreign))
    put(build_batch([NewRecord(1, None, b"after", headers)]))
    return topic


def test_poll_delivers_foreign_headers_twice(rest: httpx.Client, filled: str) -> None:
    path = join(rest, "polls", filled)
    found: dict[str, object] = {}
    while len(found) < len(VALUES):
        answer = rest.get(f"{path}/messages", params={"wait_ms": 5_000, "delivery": 0})
        assert answer.status_code == 200, answer.text
        found |= {one["value"]: one.get("headers", []) for one in answer.json()["messages"]}
    assert found == SHOWN
    again = rest.get(f"{path}/messages", params={"delivery": 0}).json()["messages"]
    assert {one["value"]: one.get("headers", []) for one in again} == SHOWN


def test_stream_delivers_foreign_headers(broker: LocalBroker, filled: str) -> None:
    with events(f"{broker.http_url}/api/v1/groups/streams/stream?topic={filled}") as stream:
        found = [json.loads(event["data"]) for event in take(stream, len(VALUES))]
    assert {one["value"]: one.get("headers", []) for one in found} == SHOWN


def test_grpc_stream_delivers_foreign_headers(rpc: stubs.KafkaBrokerStub, filled: str) -> None:
    subscribe = pb.Subscribe(group_id="grpc", topics=[filled])
    found: dict[str, list[dict[str, object]]] = {}
    for event in rpc.StreamConsume(iter([pb.StreamConsumeRequest(subscribe=subscribe)]), timeout=WAIT_S):
        for one in (record for part in event.records.partitions for record in part.records):
            rows = [{"name": row.name, "value": row.value.decode() or None} for row in one.headers]
            found[one.value.decode()] = rows
        if len(found) == len(VALUES):
            break
    assert found == SHOWN


def test_command_consumes_foreign_headers(broker: LocalBroker, filled: str) -> None:
    arguments = ["consume", filled, "--bootstrap", broker.bootstrap, "--count", str(len(VALUES))]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert [value in done.output for value in VALUES] == [True] * len(VALUES)
