"""Which partitions are fetched when one takes the place of another."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.broker.replica.partition import Partition
from headrace.broker.replication import replica_fetcher_manager
from headrace.broker.replication.replica_fetcher_manager import ReplicaFetcherManager
from headrace.broker.replication.replication_quota_manager import ReplicationQuotaManager
from headrace.broker.server import Broker
from headrace.core.image.deltas import PartitionsChanged
from headrace.core.image.model import TopicImage

TOPIC = TopicImage("t", UUID(int=7), (), {})


class FetcherOfKeys:
    """As much of a Fetcher as decides what it follows."""

    def __init__(self, *_: object) -> None:
        self.followed: dict[tuple[UUID, int], Partition] = {}

    def add(self, partition: Partition) -> None:
        self.followed[(partition.topic_id, partition.index)] = partition

    def drop(self, key: tuple[UUID, int]) -> None:
        self.followed.pop(key, None)

    def holds(self, partition: Partition) -> bool:
        return self.followed.get((partition.topic_id, partition.index)) is partition


class Follower:
    def __init__(self, failure: Exception | None = None) -> None:
        self.topic_id, self.index, self.leader = TOPIC.topic_id, 0, 2
        self.failure, self.refetch_from_epoch = failure, None


def test_partition_that_replaces_one_set_aside_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_fetcher_manager, "ReplicaFetcher", FetcherOfKeys)
    held: list[Any] = [Follower()]
    broker = SimpleNamespace(
        node_id=1, partitions=SimpleNamespace(of_topic=lambda _: held), image=SimpleNamespace(topics={"t": TOPIC})
    )
    following = ReplicaFetcherManager(cast(Broker, broker), cast(Any, None), cast(ReplicationQuotaManager, None))
    following.start()
    held[0].failure = ValueError("set aside")
    held[0] = Follower()
    following.follow(PartitionsChanged(TOPIC, ()))
    fetcher = cast(FetcherOfKeys, following._by_leader[2])
    assert fetcher.holds(held[0])
