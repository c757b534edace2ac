"""Produces that wait: dropped from their partitions when they time out, ended before the logs are closed."""

import asyncio
from typing import Any, cast

from headrace.broker.handlers.data.produce import ProduceHandler
from headrace.broker.metrics import BrokerMetrics
from headrace.broker.server import Broker
from headrace.model.errors import ErrorCode
from headrace.protocol.messages.produce import PartitionResult
from tests.unit.broker.handlers.handler_kit import HandlerKit


class SentReply:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, parts: Any) -> None:
        self.sent.append(parts)


def handler_of(kit: HandlerKit) -> ProduceHandler:
    kit.figures = BrokerMetrics()  # type: ignore[attr-defined]
    kit.check_free_space = lambda size: None  # type: ignore[attr-defined]
    return ProduceHandler(cast(Broker, kit))


async def test_timed_out_produces_leave_their_partitions() -> None:
    kit = await HandlerKit().start()
    await kit.create("t", partitions=2)
    handler, replies = handler_of(kit), [SentReply() for _ in range(20)]
    for number, reply in enumerate(replies):
        row = PartitionResult(0, ErrorCode.NONE, number, -1, 0)
        wait = handler._new_wait(cast(Any, reply), 9, number, [("t", [row])], timeout_ms=1000 if number else 9000)
        for index in (0, 1):
            wait.wait_for(kit.partition("t", index), 100 + number)
    handler.expire(kit.clock.monotonic_ms() + 1000)
    assert [len(kit.partition("t", index).waiters.appends) for index in (0, 1)] == [1, 1]
    assert [len(reply.sent) for reply in replies] == [0] + 19 * [1]
    for index in (0, 1):
        kit.partition("t", index).waiters.on_high_watermark_advanced(1000)
    assert [len(reply.sent) for reply in replies] == 20 * [1], "each gets one response"
    await kit.close()


async def test_close_ends_produces_that_are_being_prepared() -> None:
    kit = await HandlerKit().start()
    handler = handler_of(kit)
    appended: list[str] = []

    async def prepare() -> None:
        await asyncio.sleep(3600)
        appended.append("after the logs were closed")

    task = asyncio.create_task(prepare())
    handler._preparations.add(task)
    await asyncio.sleep(0)
    await handler.close()
    assert task.done()
    assert not appended
    await kit.close()
