"""A stream whose client reads nothing ends after a time: its partitions go to others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api.rest import http, sse
from headrace.api.rest.http import Message
from headrace.api.rest.sse import EventStream


class Transport:
    aborted = False

    def abort(self) -> None:
        self.aborted = True


async def test_stream_that_is_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "UNREAD_S_MAX", 0)
    left = asyncio.Event()
    scope: dict[str, Any] = {}
    transport: Any = Transport()
    http.note_transport(scope, transport)

    @asynccontextmanager
    async def reading() -> AsyncIterator[Any]:
        yield SimpleNamespace()
        left.set()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    client: Any = SimpleNamespace(figures=SimpleNamespace(streams=0), stopping=asyncio.Event())
    await EventStream(client, reading(), lambda place, offset: "", "auto")(scope, receive, send)
    assert (left.is_set(), transport.aborted, client.figures.streams) == (True, True, 0)
