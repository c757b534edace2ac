"""When a reader is told that its topics are gone, and when it is not."""

from uuid import UUID

import pytest

from headrace.client.aio.client import ClusterMetadata, TopicMetadata
from headrace.client.aio.topic_monitor import TopicDeletionMonitor
from headrace.client.core.errors import KafkaApiError

FIRST, SECOND = UUID(int=1), UUID(int=2)


class World:
    """A cluster whose topics a test makes and deletes."""

    def __init__(self) -> None:
        self.topics: dict[str, UUID] = {}
        self.asked: list[list[str] | None] = []

    async def described(self, names: list[str] | None) -> ClusterMetadata:
        self.asked.append(names)
        return ClusterMetadata(
            None, 1, {}, {name: TopicMetadata(name, id_, False, ()) for name, id_ in self.topics.items()}
        )


@pytest.fixture
def world() -> World:
    return World()


async def test_a_reader_is_told_when_its_topic_was_missed_twice(world):
    watch, told = TopicDeletionMonitor(world), []
    world.topics = {"a": FIRST}
    watch.watch(["a"], told.append)
    await watch.look()
    world.topics = {}
    await watch.look()
    assert told == [], "perhaps that broker has not heard of it yet"
    await watch.look()
    (refusal,) = told
    assert isinstance(refusal, KafkaApiError)
    assert "a was deleted" in str(refusal)
    await watch.look()
    assert len(told) == 1, "once is enough"
    await watch.close()


async def test_a_topic_that_was_only_overlooked_is_not_gone(world):
    watch, told = TopicDeletionMonitor(world), []
    watch.watch(["a"], told.append)
    for topics in ({}, {"a": FIRST}, {}, {"a": FIRST}):
        world.topics = topics
        await watch.look()
    assert told == []
    await watch.close()


async def test_another_topic_of_the_same_name_is_another_topic(world):
    watch, told = TopicDeletionMonitor(world), []
    watch.watch(["a"], told.append)
    world.topics = {"a": FIRST}
    await watch.look()
    world.topics = {"a": SECOND}
    await watch.look()
    await watch.look()
    assert len(told) == 1
    await watch.close()


async def test_one_of_several_topics_may_go(world):
    watch, told = TopicDeletionMonitor(world), []
    world.topics = {"a": FIRST, "b": SECOND}
    watch.watch(["a", "b"], told.append)
    watch.watch(["b"], told.append)
    for topics in ({"b": SECOND}, {"b": SECOND}, {"b": SECOND}):
        world.topics = topics
        await watch.look()
    assert told == []
    assert world.asked[-1] == ["a", "b"], "one question for all"
    await watch.close()


async def test_who_is_forgotten_is_told_nothing(world):
    watch, told = TopicDeletionMonitor(world), []
    watch.forget(watch.watch(["a"], told.append))
    await watch.look()
    await watch.look()
    assert told == []
    await watch.close()
