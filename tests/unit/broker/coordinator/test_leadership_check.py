"""When a leader that may have been replaced believes that it was not. Time is simulated: nobody waits."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.broker.coordinator.leadership_check import WAIT_S_MAX, confirm_leadership
from headrace.broker.replica.partition import Partition
from headrace.core.image.model import PartitionRegistration
from headrace.testing.simulation.files import SimFiles
from headrace.testing.simulation.loop import SimLoop
from tests.unit.broker.partition_kit import CommitByHand, new_partition

THREE = PartitionRegistration(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=0, partition_epoch=1)


@pytest.fixture
def partition() -> Partition:
    led = new_partition(SimFiles(), CommitByHand())
    led.follow(THREE._replace(leader_epoch=led.leader_epoch + 1))
    return led


def lived(work: Coroutine[Any, Any, bool]) -> tuple[bool, float]:
    """What comes of it, and how long that took."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(work), loop.time()
    finally:
        loop.close()


def fenced() -> bool:
    return True


async def while_fetching(
    partition: Partition, broker: int, times: int, may_be_fenced: Callable[[], bool] = fenced
) -> bool:
    async def fetch() -> None:
        for _ in range(times):
            await asyncio.sleep(0.5)
            partition.update_follower_fetch_state(broker, 1, 0, -1, 0)

    fetching = asyncio.create_task(fetch())
    try:
        return await confirm_leadership(partition, may_be_fenced)
    finally:
        fetching.cancel()


def test_whom_all_in_sync_follow_was_not_replaced(partition: Partition) -> None:
    followed, took_s = lived(while_fetching(partition, broker=2, times=5))
    assert followed
    assert took_s == pytest.approx(1.0, abs=0.1), "the second fetch tells"


def test_one_fetch_may_have_been_sent_before_the_question(partition: Partition) -> None:
    assert lived(while_fetching(partition, broker=2, times=1)) == (False, pytest.approx(WAIT_S_MAX))


def test_who_is_not_in_sync_tells_nothing(partition: Partition) -> None:
    assert not lived(while_fetching(partition, broker=3, times=5))[0]


def test_who_could_be_elected_all_the_same_counts(partition: Partition) -> None:
    partition.follow(THREE._replace(isr=(1,), elr=(3,), leader_epoch=partition.leader_epoch, partition_epoch=2))
    assert not lived(while_fetching(partition, broker=2, times=5))[0]
    assert lived(while_fetching(partition, broker=3, times=5))[0]


def test_elr_is_not_waited_for_while_the_session_is_valid(partition: Partition) -> None:
    """Its members may be down for days, and none of them is elected before this broker leaves the ISR."""
    partition.follow(THREE._replace(elr=(3,), leader_epoch=partition.leader_epoch, partition_epoch=2))
    assert lived(while_fetching(partition, broker=2, times=5, may_be_fenced=lambda: False))[0]
    assert not lived(while_fetching(partition, broker=3, times=5, may_be_fenced=lambda: False))[0]


def test_elr_is_waited_for_if_the_session_expires_meanwhile(partition: Partition) -> None:
    partition.follow(THREE._replace(elr=(3,), leader_epoch=partition.leader_epoch, partition_epoch=2))
    was_valid = iter([False])
    assert not lived(while_fetching(partition, 2, 5, may_be_fenced=lambda: next(was_valid, True)))[0]


def test_a_leader_alone_cannot_be_replaced(partition: Partition) -> None:
    partition.follow(THREE._replace(isr=(1,), leader_epoch=partition.leader_epoch, partition_epoch=2))
    assert lived(confirm_leadership(partition, fenced)) == (True, 0.0)


def test_who_does_not_lead_is_not_followed(partition: Partition) -> None:
    partition.follow(THREE._replace(leader=2, leader_epoch=partition.leader_epoch + 1, partition_epoch=2))
    assert not lived(confirm_leadership(partition, fenced))[0]
