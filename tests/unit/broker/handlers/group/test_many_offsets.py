"""Removing very many offsets of groups: a few at a time, so that requests and the broker's session do not wait."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.coordinator import group_coordinator
from headrace.core.coordinator import Decision
from headrace.core.group import coordinator_shard, offset_manager
from headrace.protocol.api import ApiKey
from tests.unit.broker.connection_kit import until
from tests.unit.broker.handlers.handler_kit import HandlerKit

REMOVED_MAX = 4
GROUPS, PARTITIONS = 3, 10


@pytest.fixture
async def kit(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HandlerKit]:
    for module in (group_coordinator, coordinator_shard, offset_manager):
        monkeypatch.setattr(module, "REMOVED_MAX", REMOVED_MAX)
    started = await HandlerKit(offsets_topic_num_partitions="1", offsets_retention_minutes="1").start()
    await started.create("t", PARTITIONS)
    await started.groups.leader_of("g")
    rows = [{"partition_index": index, "committed_offset": 1} for index in range(PARTITIONS)]
    for number in range(GROUPS):
        await started.ask(ApiKey.OFFSET_COMMIT, 9, group_id=f"g{number}", topics=[{"name": "t", "partitions": rows}])
    yield started
    await started.close()
    await started.partitions.close()
    await started.controller.stop()


async def delete_topic(kit: HandlerKit) -> None:
    await kit.controller.delete_topics(["t"])


async def create_again(kit: HandlerKit) -> None:
    """The coordinator has not seen the deletion."""
    kit.groups.runtime.remove_everywhere = lambda *_, **__: None  # type: ignore[method-assign]
    await kit.controller.delete_topics(["t"])
    await kit.create("t")


async def load_after_creation(kit: HandlerKit) -> None:
    """Another broker was the coordinator when the topic was created again."""
    partition = kit.groups.runtime.shard_for("g").partition
    kit.groups.runtime.resign(partition.index)
    await kit.controller.delete_topics(["t"])
    await kit.create("t")
    kit.groups.runtime.lead(partition)
    await until(lambda: kit.groups.runtime.shards())


async def expire(kit: HandlerKit) -> None:
    kit.clock.advance_ms(61_000)
    kit.groups._expire_offsets()


@pytest.mark.parametrize("remove", [delete_topic, create_again, load_after_creation, expire])
async def test_offsets_are_removed_a_few_at_a_time(
    kit: HandlerKit, monkeypatch: pytest.MonkeyPatch, remove: Callable[[HandlerKit], Awaitable[None]]
) -> None:
    removed: list[int] = []
    carry_out = kit.groups.runtime.carry_out

    def counted(shard: Any, decision: Decision[Any]) -> None:
        removed.append(sum(isinstance(fact, offset_manager.OffsetForgotten) for fact in decision.facts))
        carry_out(shard, decision)

    monkeypatch.setattr(kit.groups.runtime, "carry_out", counted)
    await remove(kit)
    await until(lambda: sum(removed) == GROUPS * PARTITIONS)
    await asyncio.sleep(0)
    assert not list(kit.groups.runtime.shard_for("g").machine.offsets.groups())
    assert max(removed) < REMOVED_MAX + PARTITIONS, "what is left of a group is removed together"
