"""WriteTxnMarkers: only what this broker leads, for a bounded time, and partitions do not affect each other."""

from typing import Any

import pytest

from headrace.broker.coordinator import transaction_marker_manager
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from tests.unit.broker.handlers.handler_kit import HandlerKit
from tests.unit.broker.handlers.transaction.test_transactions import write

OPEN = (77, 0)


async def codes(kit: HandlerKit, *topics: str, **fields: Any) -> list[int]:
    marker = {
        "producer_id": 77,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": (0,)} for topic in topics],
        "coordinator_epoch": 0,
        **fields,
    }
    answer = await kit.ask(ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker])
    return [row.error_code.value for topic in answer.markers[0].topics for row in topic.partitions]


async def test_partition_led_elsewhere_gets_not_leader(kit: HandlerKit) -> None:
    await kit.create("t")
    await kit.create("u")
    kit.partition("t").leader = 9
    assert await codes(kit, "t", "u") == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]
    assert kit.partition("t").log_end_offset == 0


async def test_partition_below_min_insync_rejects_before_appending(kit: HandlerKit) -> None:
    await kit.create("t")
    await kit.create("u")
    write(kit, OPEN)
    kit.partition("t").isr = ()
    assert await codes(kit, "t", "u") == [ErrorCode.NOT_ENOUGH_REPLICAS, 0]
    assert kit.partition("t").log_end_offset == 1


async def test_marker_without_commit_times_out_and_leaves_no_waiter(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kit.create("t")
    await kit.create("u")
    write(kit, OPEN)
    partition = kit.partition("t")
    monkeypatch.setattr(transaction_marker_manager, "MARKER_WAIT_S", 0.01)
    monkeypatch.setattr(partition, "set_high_watermark", lambda offset: None)
    assert await codes(kit, "t", "u") == [ErrorCode.REQUEST_TIMED_OUT, 0]
    assert not partition.waiters.appends


async def test_partition_that_raises_does_not_affect_others(kit: HandlerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    await kit.create("t")
    await kit.create("u")

    def broken(*arguments: Any, **options: Any) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(kit.partition("t"), "append_marker", broken)
    assert await codes(kit, "t", "u") == [ErrorCode.UNKNOWN_SERVER_ERROR, 0]
