"""A stream of lines that takes few bytes and many steps leaves turns of the event loop to others."""

import asyncio
import gzip
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api.rest.http import Message
from headrace.api.rest.upload import LINES_AT_ONCE, upload
from headrace.client.aio.client import TopicMetadata

FACTS = TopicMetadata("t", None, False, ())
LINES = 300_000


async def turns_during(body: bytes, *names: tuple[bytes, bytes]) -> tuple[int, int]:
    """How many turns another task got while the body was taken, and the status of the answer."""
    services: Any = SimpleNamespace(publisher=None, settings=SimpleNamespace(body_bytes_max=1024))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    counting = asyncio.create_task(count())
    answer = await upload(services, FACTS, {"headers": list(names)}, receive, None)
    counting.cancel()
    return turns, answer.status


@pytest.mark.parametrize("line", [b"\n", b" \r\n"])
async def test_lines_without_a_message_leave_turns_to_others(line: bytes) -> None:
    turns, status = await turns_during(line * LINES)
    assert (status, turns > LINES // LINES_AT_ONCE) == (200, True)


async def test_decompressed_lines_leave_turns_to_others() -> None:
    turns, status = await turns_during(gzip.compress(b"\n" * LINES), (b"content-encoding", b"gzip"))
    assert (status, turns > LINES // LINES_AT_ONCE) == (200, True)
