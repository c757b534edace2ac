"""The small server, asked as scrapers and strangers ask."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from headrace.telemetry.broker_metrics import CONNECTIONS
from headrace.telemetry.exporter import HEAD_BYTES_MAX, Telemetry, TelemetryServer
from headrace.telemetry.health import Check, Checks, Status
from headrace.telemetry.metrics import one
from headrace.telemetry.remote_metrics import NoAnswer, ask


class Stand:
    def __init__(self) -> None:
        self.told: Checks = {"disk": Check(Status.OK, "fine")}
        self.server = TelemetryServer(Telemetry(self.families, self.checks))
        self.port = 0

    async def families(self):
        return [one(CONNECTIONS, 7)]

    async def checks(self) -> Checks:
        return self.told

    async def say(self, request: bytes) -> tuple[str, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return head.decode(), body

    async def get(self, path: str) -> tuple[str, bytes]:
        return await self.say(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest_asyncio.fixture
async def stand() -> AsyncIterator[Stand]:
    made = Stand()
    _, made.port = await made.server.listen("127.0.0.1", 0)
    yield made
    await made.server.close()


async def test_metrics_are_told_in_the_format_that_is_asked_for(stand):
    head, body = await stand.get("/metrics?x=1")
    assert head.startswith("HTTP/1.1 200")
    assert "text/plain; version=0.0.4" in head
    assert b"headrace_connections 7\n" in body
    request = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n"
    assert (await stand.say(request))[1].endswith(b"# EOF\n")


async def test_ready_says_what_keeps_it_from_serving(stand):
    assert (await stand.get("/ready"))[0].startswith("HTTP/1.1 200")
    stand.told["store"] = Check(Status.DOWN, "the session is over")
    head, body = await stand.get("/ready")
    assert head.startswith("HTTP/1.1 503")
    assert json.loads(body)["detail"] == "store: the session is over"
    assert (await stand.get("/health"))[0].startswith("HTTP/1.1 200"), "it is alive all the same"
    assert json.loads((await stand.get("/checks"))[1])["status"] == "down"


async def test_strangers_get_an_answer_or_the_door(stand):
    assert "404" in (await stand.get("/nothing"))[0]
    assert "405" in (await stand.say(b"POST /metrics HTTP/1.1\r\n\r\n"))[0]
    assert "400" in (await stand.say(b"hello\r\n\r\n"))[0]
    assert "400" in (await stand.say(b"GET /" + b"a" * 2 * HEAD_BYTES_MAX))[0]
    head, body = await stand.say(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert "200" in head
    assert body == b""


async def test_a_neighbour_is_asked_by_the_name_of_its_socket(stand):
    await stand.server.listen_for_gateway("headrace-test-neighbour")
    told = await ask("headrace-test-neighbour")
    assert told.families == [one(CONNECTIONS, 7)]
    assert told.checks == stand.told
    with pytest.raises(NoAnswer, match="refused"):
        await ask("headrace-test-nobody")
