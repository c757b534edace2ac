"""Questions that any broker answers, while some of them are silent."""

from typing import Any

import pytest

from headrace.client.aio.client import ANSWER_S_MAX, Cluster
from headrace.client.librdkafka import BrokerUnreachable, ResponseLost

BROKERS = [("a", 1), ("b", 2), ("c", 3)]
REQUEST_S = 30.0


async def test_silent_broker_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("a:1,b:2,c:3", client_id="test", request_timeout_s=REQUEST_S)
    silent = {BROKERS[0]}
    asked: list[tuple[Any, float]] = []

    async def call(address: Any, request: Any, response_type: Any, timeout_s: float) -> str:
        asked.append((address, timeout_s))
        if address in silent:
            raise ResponseLost("no answer")
        return "answer"

    monkeypatch.setattr(cluster, "_call", call)

    async def ask() -> list[tuple[Any, float]]:
        asked.clear()
        assert await cluster.call_any_broker(None, str) == "answer"
        return list(asked)

    assert await ask() == [(BROKERS[0], ANSWER_S_MAX), (BROKERS[1], ANSWER_S_MAX)]
    assert await ask() == [(BROKERS[1], ANSWER_S_MAX)]
    silent |= {BROKERS[1], BROKERS[2]}
    silent.remove(BROKERS[0])
    found = await ask()
    assert found == [(BROKERS[1], ANSWER_S_MAX), (BROKERS[2], ANSWER_S_MAX), (BROKERS[0], REQUEST_S)]
    silent.add(BROKERS[0])
    with pytest.raises(BrokerUnreachable):
        await cluster.call_any_broker(None, str)
