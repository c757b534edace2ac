"""Types of the ids that all layers use."""

from collections.abc import Iterable
from typing import NamedTuple, NewType
from uuid import UUID

BrokerId = NewType("BrokerId", int)
TopicId = UUID
Offset = int
LeaderEpoch = int

NO_PRODUCER_ID = -1
NO_EPOCH = -1
ZERO_UUID = UUID(int=0)


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Returns the partitions of each topic, both in their order of appearance."""
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return topics
