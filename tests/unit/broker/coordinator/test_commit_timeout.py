"""offsets.commit.timeout.ms: a request of a group whose records are not committed in time fails, and may be retried."""

import asyncio
from typing import Any

import pytest

from headrace.broker.coordinator import runtime as coordinator_runtime
from headrace.broker.coordinator.errors import CoordinatorNotAvailable
from headrace.broker.replica.partition import Partition
from headrace.core.group.coordinator_shard import NewOffset
from headrace.core.group.group_manager import Committer
from headrace.core.image.model import PartitionRegistration
from headrace.core.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.model.ids import TopicPartition
from headrace.protocol.api import ApiKey
from tests.unit.broker.connection_kit import until
from tests.unit.broker.handlers.handler_kit import HandlerKit

TIMEOUT_MS = 5000
RETRIES = 20


async def kit_with_followers() -> tuple[HandlerKit, Partition]:
    """The partition of the offsets topic waits for broker 8, which does not fetch."""
    kit = await HandlerKit(offsets_topic_num_partitions="1", offsets_commit_timeout_ms=str(TIMEOUT_MS)).start()
    await kit.create("t")
    await kit.groups.leader_of("g")
    partition = kit.partition(OFFSETS_TOPIC)
    partition.follow(
        PartitionRegistration((kit.node_id, 8), (kit.node_id, 8), kit.node_id, partition.leader_epoch + 1, 99)
    )
    kit.groups._topic.lead()
    return kit, partition


def commit(kit: HandlerKit, offset: int) -> "asyncio.Task[Any]":
    rows = [{"partition_index": 0, "committed_offset": offset}]
    topics = [{"name": "t", "partitions": rows}]
    return asyncio.create_task(kit.ask(ApiKey.OFFSET_COMMIT, 8, group_id="g", topics=topics))


def code_of(task: "asyncio.Task[Any]") -> int:
    return int(task.result().topics[0].partitions[0].error_code)


async def test_offset_commit_without_replicas_times_out() -> None:
    kit, partition = await kit_with_followers()
    early = commit(kit, 1)
    await until(lambda: len(partition.waiters.appends) == 1)
    kit.clock.advance_ms(TIMEOUT_MS - 1)
    late = commit(kit, 2)
    await until(lambda: len(partition.waiters.appends) == 2)
    kit.clock.advance_ms(1)
    await until(early.done)
    assert code_of(early) == CoordinatorNotAvailable.code
    assert not late.done()
    assert len(partition.waiters.appends) == 1
    partition.update_follower_fetch_state(8, 1, partition.log_end_offset, -1, 0)
    await until(late.done)
    assert code_of(late) == 0
    await kit.close()


async def test_expiry_stops_when_nothing_waits() -> None:
    kit, partition = await kit_with_followers()
    task = commit(kit, 1)
    await until(lambda: len(partition.waiters.appends) == 1)
    assert kit.groups.runtime._expiry is not None
    partition.update_follower_fetch_state(8, 1, partition.log_end_offset, -1, 0)
    await until(task.done)
    await until(lambda: kit.groups.runtime._expiry is None)
    await kit.close()


async def test_client_that_retries_at_once_leaves_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response can lead to the next request of the connection before the check for timeouts is over."""
    kit, _ = await kit_with_followers()
    runtime = kit.groups.runtime
    monkeypatch.setattr(coordinator_runtime, "EXPIRY_CHECK_MS", 1)
    scheduled, fired, failures = 0, 0, 0
    schedule, expire = runtime._schedule_expiry, runtime._expire_waits

    def counting_schedule(delay_ms: int) -> None:
        nonlocal scheduled
        scheduled += 1
        schedule(delay_ms)

    def counting_expire(delay_ms: int) -> None:
        nonlocal fired
        fired += 1
        expire(delay_ms)

    monkeypatch.setattr(runtime, "_schedule_expiry", counting_schedule)
    monkeypatch.setattr(runtime, "_expire_waits", counting_expire)
    committer = Committer("", None, -1, 0)

    def submit() -> None:
        wanted = [NewOffset(TopicPartition("t", 0), 1, -1, "", -1)]
        runtime.submit("g", lambda machine, ticket, now: machine.commit("g", committer, wanted, ticket, now), failed)

    def failed(reply: object) -> None:
        nonlocal failures
        failures += 1
        if failures <= RETRIES:
            submit()

    submit()
    kit.clock.advance_ms(TIMEOUT_MS // 2)
    submit()  # so that one still waits whenever the other fails
    while failures < RETRIES:
        kit.clock.advance_ms(TIMEOUT_MS // 2)
        before = fired
        await until(lambda before=before: fired > before)  # type: ignore[misc]
        assert scheduled - fired <= 1, "one timer at a time"
    await kit.close()


async def test_transaction_topic_has_its_own_min_isr() -> None:
    kit = await HandlerKit(transaction_state_log_min_isr="3", transaction_state_log_num_partitions="1").start()
    await kit.transactions.leader_of("x")
    assert kit.partition(TRANSACTIONS_TOPIC).log.config.min_insync_replicas == 3
    answer = await asyncio.wait_for(kit.transactions.init_producer_id("x", 1000, None), 10)
    assert answer.epoch == 0, "with fewer replicas than that, their number is enough"
    await kit.close()
