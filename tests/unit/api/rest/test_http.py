"""Bodies within limits: how slow is too slow, without waiting for it."""

import asyncio

import pytest

from headrace.api.rest import http
from headrace.api.rest.errors import Problem
from headrace.api.rest.http import Disconnected, body_parts, read_body

SCOPE = {"headers": []}


def receiving(*parts: bytes, then: str = "hang"):
    """A client that sends the parts and then falls silent, hangs up, or ends."""
    queue = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if then == "end":
        queue[-1]["more_body"] = False

    async def receive():
        if queue:
            return queue.pop(0)
        if then == "hang":
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    return receive


async def test_a_whole_body_is_put_together():
    assert await read_body(SCOPE, receiving(b"a", b"b", then="end"), 10) == b"ab"


async def test_a_body_in_many_parts_ends_at_the_limit():
    with pytest.raises(Problem) as refused:
        await read_body(SCOPE, receiving(*[b"x" * 6] * 2, then="end"), 10)
    assert refused.value.status == 413


@pytest.mark.parametrize("limit", ["SILENCE_S_MAX", "WHOLE_BODY_S_MAX"])
async def test_a_client_that_falls_silent_is_told_so(monkeypatch, limit):
    monkeypatch.setattr(http, limit, 0.01)
    with pytest.raises(Problem) as refused:
        await read_body(SCOPE, receiving(b"a"), 10)
    assert refused.value.status == 408


async def test_a_stream_that_falls_silent_ends(monkeypatch):
    monkeypatch.setattr(http, "SILENCE_S_MAX", 0.01)
    parts = body_parts(SCOPE, receiving(b"a", b"b"))
    assert [await anext(parts), await anext(parts)] == [b"a", b"b"]
    with pytest.raises(Problem):
        await anext(parts)


async def test_a_client_that_hangs_up_has_nobody_to_answer():
    with pytest.raises(Disconnected):
        await read_body(SCOPE, receiving(b"a", then="gone"), 10)
