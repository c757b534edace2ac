"""Metadata waits for the election after a connection to another broker broke, and never for long."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.controller import failure_detector
from headrace.broker.controller.failure_detector import BrokenConnections
from headrace.core.image.model import PartitionRegistration

pytestmark = pytest.mark.usefixtures("hour_for_elections")


@pytest.fixture
def hour_for_elections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_detector, "ELECTION_S_MAX", 3600.0)
    monkeypatch.setattr(failure_detector, "RESPONSE_S_MAX", 3600.0)


def image(**leaders: int) -> Any:
    """Topics of one partition, by their leaders."""
    return SimpleNamespace(
        topics={
            name: SimpleNamespace(partitions=(PartitionRegistration((1, 2, 3), (1, 2, 3), leader, 0, 0),))
            for name, leader in leaders.items()
        },
        brokers={node_id: SimpleNamespace(epoch=5) for node_id in (1, 2, 3)},
    )


BEFORE = image(mine=1, other=2)


async def waiting(lost: BrokenConnections, at: Any, topics: list[str] | None) -> "asyncio.Task[None]":
    task = asyncio.create_task(lost.wait_until_replaced(at, topics))
    await asyncio.sleep(0)
    return task


async def test_topics_of_other_leaders_are_not_waited_for() -> None:
    lost = BrokenConnections()
    lost.add(2, 5, BEFORE)
    await lost.wait_until_replaced(BEFORE, ["mine", "unknown"])
    await lost.wait_until_replaced(image(mine=1), None)
    lost.close()


@pytest.mark.parametrize("topics", [["other"], None])
async def test_wait_for_a_lost_leader_ends_with_the_election(topics: list[str] | None) -> None:
    lost = BrokenConnections()
    lost.add(2, 5, BEFORE)
    task = await waiting(lost, BEFORE, topics)
    lost.follow(BEFORE)
    await asyncio.sleep(0)
    assert not task.done()
    lost.follow(image(mine=1, other=3))
    await task
    assert not lost.node_ids


async def test_wait_ends_when_the_broker_is_reached_again() -> None:
    lost = BrokenConnections()
    lost.add(2, 5, BEFORE)
    task = await waiting(lost, BEFORE, ["other"])
    lost.remove(2)
    await task
    assert not lost.node_ids


async def test_wait_ends_when_no_leader_is_elected_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_detector, "ELECTION_S_MAX", 0.0)
    lost = BrokenConnections()
    lost.add(2, 5, BEFORE)
    await lost.wait_until_replaced(BEFORE, ["other"])
    assert not lost.node_ids


async def test_response_does_not_wait_as_long_as_the_broker_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_detector, "RESPONSE_S_MAX", 0.0)
    lost = BrokenConnections()
    lost.add(2, 5, BEFORE)
    await lost.wait_until_replaced(BEFORE, ["other"])
    assert lost.node_ids == {2}
    lost.close()


async def test_broker_that_has_registered_again_is_not_lost() -> None:
    lost = BrokenConnections()
    lost.add(2, 5, BEFORE)
    task = await waiting(lost, BEFORE, ["other"])
    again = image(mine=1, other=2)
    again.brokers[2].epoch = 6
    lost.follow(again)
    await task
    lost.add(2, 5, again)
    assert not lost.node_ids


async def test_broker_that_leads_nothing_is_not_lost() -> None:
    lost = BrokenConnections()
    lost.add(3, 5, BEFORE)
    assert not lost.node_ids


async def test_second_break_does_not_prolong_the_wait() -> None:
    lost = BrokenConnections()
    lost.add(2, 5, BEFORE)
    end = lost._lost[2].end
    lost.add(2, 5, BEFORE)
    assert lost._lost[2].end is end
    lost.close()
