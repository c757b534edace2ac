"""What a commit covers, whatever gets lost between a consumer and its client."""

import asyncio
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.rest.consumers import Deliveries
from headrace.api.rest.errors import Problem

PLACE = ("t", 0)


class Message(NamedTuple):
    """As much of librdkafka's as deliveries use."""

    at: int

    def topic(self) -> str:
        return PLACE[0]

    def partition(self) -> int:
        return PLACE[1]

    def offset(self) -> int:
        return self.at


class Member:
    """A partition without end, read from the committed offset after each assignment."""

    def __init__(self) -> None:
        self.assignment = 1
        self.committed = 0
        self.buffer = [Message(at) for at in range(100)]

    def put_back(self, messages: list[Message]) -> None:
        self.buffer = [*messages, *self.buffer]

    def take(self, count: int) -> list[Message]:
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def rebalance(self) -> None:
        self.assignment += 1
        self.buffer = [Message(at) for at in range(self.committed, 100)]


class World:
    """A client that polls and commits through connections that break, and what it has received."""

    def __init__(self, *, names: bool) -> None:
        self.member: Any = Member()
        self.deliveries = Deliveries(self.member)
        self.names = names  # whether it says which delivery it has received last
        self.received: set[int] = set()
        self.number = 0

    @property
    def _named(self) -> int | None:
        return self.number if self.names else None

    def poll(self, outcome: str) -> None:
        self.deliveries.next_poll(self._named)
        unread = asyncio.Event()
        messages = self.member.take(2)
        delivery = self.deliveries.deliver(messages, unread)
        number = self.deliveries.number
        if delivery is not None:
            delivery.sent = outcome != "not sent"
        if outcome == "broken":
            unread.set()
        if outcome == "received" or (outcome == "lost in silence" and not self.names):
            self.received |= {message.at for message in messages}
            self.number = number

    def commit(self, _: str) -> None:
        covered = self.deliveries.offsets(self._named).get(PLACE, self.member.committed)
        assert covered >= self.member.committed
        self.member.committed = covered
        assert set(range(covered)) <= self.received, "committed although the client has not received it"

    def rebalance(self, _: str) -> None:
        self.member.rebalance()


OUTCOMES = st.sampled_from(["received", "received", "broken", "not sent", "lost in silence"])
STEPS = st.lists(st.tuples(st.sampled_from([World.poll, World.poll, World.commit, World.rebalance]), OUTCOMES))


@given(st.booleans(), STEPS)
def test_commit_covers_received_records_only(names: bool, steps: list[Any]) -> None:
    world = World(names=names)
    for step, outcome in steps:
        step(world, outcome)
    for _ in range(60):  # and nothing is left out in the end
        world.poll("received")
    world.poll("received")
    world.commit("")
    assert world.member.committed == 100
    assert world.received == set(range(100))


def test_delivery_in_flight_is_not_committed() -> None:
    world = World(names=False)
    world.poll("received")
    world.deliveries.next_poll(None)
    world.deliveries.deliver(world.member.take(2), asyncio.Event())
    assert world.deliveries.offsets(None) == {PLACE: 2}


def test_delivery_named_by_its_client_counts_though_seen_broken() -> None:
    world = World(names=False)
    world.poll("broken")
    assert world.deliveries.offsets(1) == {PLACE: 2}


@pytest.mark.parametrize("number", [-1, 2, 9])
def test_unknown_delivery_is_refused(number: int) -> None:
    world = World(names=True)
    world.poll("received")
    with pytest.raises(Problem, match="is not the last one, 1"):
        world.deliveries.next_poll(number)
