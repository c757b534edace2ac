"""OffsetFetch with require_stable: the coordinator confirms that it still leads before it answers from memory."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.coordinator.errors import NotCoordinator
from headrace.broker.replica.partition import Partition
from headrace.core.image.model import PartitionRegistration
from headrace.core.topic import OFFSETS_TOPIC
from headrace.protocol.api import ApiKey
from tests.unit.broker.connection_kit import settle, until
from tests.unit.broker.handlers.handler_kit import HandlerKit


class ParkedFetch:
    """A follower's fetch that waits at the leader; with its response the follower fetches again."""

    def __init__(self, partition: Partition, broker: int) -> None:
        self._partition, self._broker = partition, broker
        partition.waiters.replica_fetches[self] = None
        self.responses = 0

    def wake(self) -> None:
        pass

    def give_up(self) -> None:
        self.responses += 1
        del self._partition.waiters.replica_fetches[self]
        asyncio.get_running_loop().call_soon(self._fetch_again)

    def _fetch_again(self) -> None:
        self._partition.waiters.replica_fetches[self] = None
        self._partition.update_follower_fetch_state(self._broker, 1, self._partition.log_end_offset, -1, 0)


async def coordinator(isr: tuple[int, ...] = (8, 9), elr: tuple[int, ...] = ()) -> tuple[HandlerKit, Partition]:
    kit = await HandlerKit(offsets_topic_num_partitions="1").start()
    kit.membership = SimpleNamespace(may_be_fenced=False)  # type: ignore[assignment]
    await kit.groups.leader_of("g")
    partition = kit.partition(OFFSETS_TOPIC)
    me = kit.node_id
    partition.follow(PartitionRegistration((me, 8, 9), (me, *isr), me, partition.leader_epoch + 1, 99, elr=elr))
    return kit, partition


def fetch(kit: HandlerKit, *, require_stable: bool = True) -> "asyncio.Task[Any]":
    groups = [{"group_id": "g", "topics": None}]
    return asyncio.create_task(kit.ask(ApiKey.OFFSET_FETCH, 9, groups=groups, require_stable=require_stable))


async def test_stable_offsets_wait_for_two_fetches_of_the_isr() -> None:
    kit, partition = await coordinator()
    task = fetch(kit)
    for follower in (8, 9, 8):
        await settle()
        assert not task.done()
        partition.update_follower_fetch_state(follower, 1, 0, -1, 0)
    await settle()
    assert not task.done(), "that of broker 9 may have been sent before the request"
    partition.update_follower_fetch_state(9, 1, 0, -1, 0)
    await until(task.done)
    assert task.result().groups[0].error_code == 0
    await kit.close()


async def test_parked_fetches_of_followers_get_their_response() -> None:
    kit, partition = await coordinator()
    parked = [ParkedFetch(partition, follower) for follower in (8, 9)]
    task = fetch(kit)
    await until(task.done)
    assert task.result().groups[0].error_code == 0
    assert all(one.responses <= 4 for one in parked)
    await kit.close()


async def test_deposed_coordinator_does_not_answer_from_memory() -> None:
    kit, partition = await coordinator()
    ParkedFetch(partition, 8)  # broker 9 leads by now, and follows this broker no more
    task = fetch(kit)
    await settle()
    assert not task.done()
    partition.follow(PartitionRegistration((1, 8, 9), (8, 9), 9, partition.leader_epoch + 1, 100))
    await until(task.done)
    assert task.result().groups[0].error_code == NotCoordinator.code
    await kit.close()


async def test_follower_that_left_the_isr_is_not_waited_for() -> None:
    kit, partition = await coordinator()
    ParkedFetch(partition, 8)
    task = fetch(kit)
    await settle()
    me = kit.node_id
    partition.follow(PartitionRegistration((me, 8, 9), (me, 8), me, partition.leader_epoch, 100))
    await until(task.done)
    assert task.result().groups[0].error_code == 0
    await kit.close()


@pytest.mark.parametrize("require_stable", [True, False])
async def test_coordinator_without_followers_answers_at_once(require_stable: bool) -> None:
    kit, _ = await coordinator(isr=())
    task = fetch(kit, require_stable=require_stable)
    await settle()
    assert task.done()
    await kit.close()


async def test_coordinator_answers_while_elr_members_are_down() -> None:
    kit, _ = await coordinator(isr=(), elr=(8, 9))
    task = fetch(kit)
    await settle()
    assert task.done()
    assert task.result().groups[0].error_code == 0
    await kit.close()


async def test_coordinator_without_session_waits_for_elr_members() -> None:
    kit, partition = await coordinator(isr=(), elr=(8, 9))
    kit.membership = SimpleNamespace(may_be_fenced=True)  # type: ignore[assignment]
    task = fetch(kit)
    await settle()
    assert not task.done()
    for follower in (8, 9, 8, 9):
        await settle()
        partition.update_follower_fetch_state(follower, 1, 0, -1, 0)
    await until(task.done)
    assert task.result().groups[0].error_code == 0
    await kit.close()
