"""Assigns partitions to replica fetchers: one fetcher for each broker that leads a partition followed here."""

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.replica.partition import Partition
from headrace.broker.replication.replica_fetcher import Connect, ReplicaFetcher
from headrace.broker.replication.replication_quota_manager import ReplicationQuotaManager
from headrace.core.image.deltas import BrokerRegistered, MetadataDelta, PartitionsAdded, PartitionsChanged, TopicCreated
from headrace.core.image.metadata_image import TopicImage
from headrace.core.image.model import NO_LEADER

if TYPE_CHECKING:
    from headrace.broker.server import Broker


class ReplicaFetcherManager:
    def __init__(self, broker: "Broker", connect: Connect, throttles: ReplicationQuotaManager) -> None:
        self._broker = broker
        self._connect = connect
        self._throttles = throttles
        self._by_leader: dict[int, ReplicaFetcher] = {}
        self._leader_of: dict[Partition, int] = {}

    def start(self) -> None:
        for topic in self._broker.image.topics.values():
            self._follow_topic(topic)

    def follow(self, event: MetadataDelta) -> None:
        match event:
            case TopicCreated(topic) | PartitionsAdded(topic, _) | PartitionsChanged(topic, _):
                self._follow_topic(topic)
            case BrokerRegistered(broker) if broker.node_id in self._by_leader:
                # The address may have changed, and the connection to the former one would fail only later.
                self._by_leader[broker.node_id].look_again()
        for gone in [one for one in self._leader_of if one.failure is not None]:
            self._drop(gone)

    def _follow_topic(self, topic: TopicImage) -> None:
        for partition in self._broker.partitions.of_topic(topic):
            leader = partition.leader
            if leader in (NO_LEADER, self._broker.node_id) or partition.failure is not None:
                self._drop(partition)
            elif self._leader_of.get(partition) != leader:
                self._drop(partition)
                self._leader_of[partition] = leader
                self._fetcher(leader).add(partition)
            elif partition.refetch_from_epoch is not None:
                self._by_leader[leader].look_again()  # it may be truncated now

    def _fetcher(self, leader: int) -> ReplicaFetcher:
        if leader not in self._by_leader:
            self._by_leader[leader] = ReplicaFetcher(self._broker, leader, self._connect, self._throttles)
        return self._by_leader[leader]

    def _drop(self, partition: Partition) -> None:
        leader = self._leader_of.pop(partition, None)
        # Otherwise the fetcher has a newer partition of this name.
        if leader is not None and self._by_leader[leader].holds(partition):
            self._by_leader[leader].drop((partition.topic_id, partition.index))

    async def stop(self) -> None:
        await asyncio.gather(*(fetcher.stop() for fetcher in self._by_leader.values()))
