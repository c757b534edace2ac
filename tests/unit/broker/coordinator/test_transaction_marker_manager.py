"""Markers to other brokers: batched, and not delayed by a partition that does not commit."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from headrace.broker.coordinator import transaction_marker_manager
from headrace.broker.coordinator.transaction_marker_manager import IN_FLIGHT_MAX, MarkerSender, Outcome
from headrace.broker.server import Broker
from headrace.model.errors import HeadraceError, NotLeader, RequestTimedOut
from headrace.model.ids import TopicPartition
from headrace.storage.log_types import Producer

OUTCOME = Outcome(Producer(1, 0), True, 0, False)
SLOW, OTHER = TopicPartition("slow", 0), TopicPartition("other", 0)


class StandInBroker:
    node_id = 1

    def __init__(self) -> None:
        self.partitions = self
        self.leader = 2

    def current_leader(self, topic: str, index: int) -> tuple[int, int]:
        return self.leader, 0


class Leader:
    """Keeps a request with the slow partition until it is told to respond."""

    def __init__(self) -> None:
        self.requests: list[list[TopicPartition]] = []
        self.kept: list[asyncio.Future[HeadraceError | None]] = []

    async def write(
        self, peers: Any, node_id: int, wanted: Sequence[tuple[TopicPartition, Outcome]]
    ) -> list[HeadraceError | None]:
        places = [place for place, _ in wanted]
        self.requests.append(places)
        error = None
        if SLOW in places:
            self.kept.append(asyncio.get_running_loop().create_future())
            error = await self.kept[-1]
        return [error if place == SLOW else None for place in places]


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    leader = Leader()
    monkeypatch.setattr(transaction_marker_manager, "write_markers_at", leader.write)
    return leader


@pytest.fixture
def broker() -> StandInBroker:
    return StandInBroker()


@pytest.fixture
def sender(leader: Leader, broker: StandInBroker) -> MarkerSender:
    return MarkerSender(cast(Broker, broker))


async def iterations() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_markers_of_one_iteration_share_a_request(sender: MarkerSender, leader: Leader) -> None:
    places = [TopicPartition("t", index) for index in range(20)]
    await asyncio.gather(*(sender.write(place, OUTCOME) for place in places))
    assert leader.requests == [places]


async def test_slow_partition_does_not_delay_others(sender: MarkerSender, leader: Leader) -> None:
    slow = asyncio.create_task(sender.write(SLOW, OUTCOME))
    await iterations()
    await asyncio.wait_for(sender.write(OTHER, OUTCOME), 5)
    leader.kept[0].set_result(RequestTimedOut("not committed"))
    with pytest.raises(RequestTimedOut):
        await slow
    retries = [asyncio.create_task(sender.write(SLOW, OUTCOME)) for _ in range(3 * IN_FLIGHT_MAX)]
    for retry in retries:
        await iterations()
        await asyncio.wait_for(sender.write(OTHER, OUTCOME), 5)
        assert not retry.done()
    assert len(leader.kept) == 2, "retries of slow partitions share one request"
    leader.kept[1].set_result(None)
    await asyncio.gather(*retries)
    await sender.close()


async def test_queued_marker_of_a_moved_partition_is_rejected(
    sender: MarkerSender, leader: Leader, broker: StandInBroker
) -> None:
    held = [asyncio.create_task(sender.write(SLOW, OUTCOME)) for _ in range(1)]
    for _ in range(IN_FLIGHT_MAX - 1):
        await iterations()
        held.append(asyncio.create_task(sender.write(SLOW, OUTCOME)))
    await iterations()
    queued = asyncio.create_task(sender.write(OTHER, OUTCOME))
    await iterations()
    broker.leader = 3
    leader.kept[0].set_result(None)
    with pytest.raises(NotLeader):
        await queued
    for kept in leader.kept[1:]:
        kept.set_result(None)
    await asyncio.gather(*held)


async def test_close_ends_requests_in_flight(sender: MarkerSender, leader: Leader) -> None:
    writing = asyncio.create_task(sender.write(SLOW, OUTCOME))
    await iterations()
    await sender.close()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    assert leader.kept[0].cancelled()


async def test_slow_partition_is_forgotten_with_its_coordinator(sender: MarkerSender, leader: Leader) -> None:
    first = asyncio.create_task(sender.write(SLOW, OUTCOME))
    await iterations()
    leader.kept[0].set_result(RequestTimedOut("not committed"))
    with pytest.raises(RequestTimedOut):
        await first
    sender.forget(SLOW)
    both = asyncio.gather(sender.write(SLOW, OUTCOME), sender.write(OTHER, OUTCOME))
    await iterations()
    assert leader.requests[-1] == [SLOW, OTHER], "in the lane of the others"
    leader.kept[-1].set_result(None)
    await both
