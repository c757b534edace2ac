"""A member's buffer in bytes, and the beginning of an assignment that the cluster does not tell at once."""

import asyncio
from typing import Any, NamedTuple

import pytest
from confluent_kafka import TopicPartition

from headrace.client.aio import consumer as member_module
from headrace.client.aio.consumer import BUFFERED_BYTES_MAX, MESSAGES_AT_ONCE, Begin, GroupConsumer, GroupConsumerConfig
from headrace.client.core.errors import KafkaApiError, UnknownOutcomeError
from headrace.model.errors import ErrorCode

PLACE = ("t", 0)


class Message(NamedTuple):
    at: int
    content: bytes

    def topic(self) -> str:
        return PLACE[0]

    def partition(self) -> int:
        return PLACE[1]

    def offset(self) -> int:
        return self.at

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self.content

    def error(self) -> None:
        return None


class Consumer:
    """As much of librdkafka's as a member uses; a paused partition gives nothing."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self.paused = False
        self.assigned: list[list[Any]] = []

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.rebalance = on_assign

    def assign(self, partitions: list[Any]) -> None:
        self.assigned.append(partitions)

    def consume(self, count: int, timeout: float) -> list[Message]:
        if self.paused:
            return []
        taken, self._messages = self._messages[:count], self._messages[count:]
        return taken

    def pause(self, partitions: list[Any]) -> None:
        self.paused = True

    def resume(self, partitions: list[Any]) -> None:
        self.paused = False

    def commit(self, **options: Any) -> None: ...


class Poller:
    def add(self, member: GroupConsumer) -> None: ...

    def remove(self, member: GroupConsumer) -> None: ...


def make(monkeypatch: pytest.MonkeyPatch, messages: list[Message], **more: Any) -> tuple[GroupConsumer, Consumer]:
    consumer = Consumer(messages)
    monkeypatch.setattr(member_module, "make_member", lambda *_, **__: consumer)
    poller: Any = Poller()
    settings = GroupConsumerConfig(topics=("t",), client_id="c", group="g", buffered_max=500)
    return GroupConsumer("nowhere:1", settings, poller, **more), consumer


@pytest.mark.parametrize("size", [1, 10_000, BUFFERED_BYTES_MAX // 3, 3 * BUFFERED_BYTES_MAX])
async def test_buffer_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    content = b"x" * size
    member, _ = make(monkeypatch, [Message(at, content) for at in range(2_000)], places={PLACE: 0})
    found: list[int] = []
    most = 0
    while len(found) < 2_000:
        member.pump()
        most = max(most, len(member._buffer))
        taken: list[Any] = await member.poll(100, 0)
        if len(found) % 3 == 0:  # sent, and not received
            member.put_back(taken)
            assert await member.poll(len(taken), 0) == taken
        found += [one.offset() for one in taken]
    assert found == list(range(2_000))
    assert most <= min(500, BUFFERED_BYTES_MAX // size + MESSAGES_AT_ONCE)


@pytest.mark.parametrize("error", [UnknownOutcomeError("later"), KafkaApiError(ErrorCode.NOT_COORDINATOR, "later")])
async def test_beginning_that_fails_for_now_is_asked_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    outcomes: list[Exception | None] = [error, error, None]
    begun = asyncio.Event()

    async def beginning(places: Any) -> Begin:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        begun.set()
        return Begin({PLACE: 7}, {})

    monkeypatch.setattr(member_module, "BEGIN_AGAIN_S", 0)
    member, consumer = make(monkeypatch, [Message(7, b"x")], beginning=beginning)
    consumer.rebalance(consumer, [TopicPartition(*PLACE)])
    await begun.wait()
    member.pump()
    (found,) = await member.poll(10, 60)
    assert (found.offset(), member.assigned) == (7, [PLACE])


async def test_beginning_that_fails_for_good_ends_the_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    async def beginning(places: Any) -> Begin:
        raise KafkaApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no")

    member, consumer = make(monkeypatch, [], beginning=beginning)
    consumer.rebalance(consumer, [TopicPartition(*PLACE)])
    with pytest.raises(KafkaApiError, match="no"):
        await member.poll(10, 60)
