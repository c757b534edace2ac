"""Replication quotas: limits the rate at which this broker sends and fetches replicas that are being reassigned."""

from typing import TYPE_CHECKING

from headrace.broker.replica.partition import Partition
from headrace.core.image.deltas import ConfigsChanged, MetadataDelta
from headrace.core.image.model import ResourceType
from headrace.core.replica.replication_quota import ReplicationQuota, is_listed

if TYPE_CHECKING:
    from headrace.broker.server import Broker

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


class ReplicationQuotaManager:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._clock = broker.clock
        self._sending = ReplicationQuota()  # of followers that fetch from this broker
        self._copying = ReplicationQuota()
        self._sent_bytes = self._copied_bytes = 0

    def start(self) -> None:
        configs = self._broker.controller.broker_configs()
        for throttle, key in ((self._sending, LEADER_RATE), (self._copying, FOLLOWER_RATE)):
            throttle.limit(int(configs[key]) if key in configs else None)

    def follow(self, event: MetadataDelta) -> None:
        if isinstance(event, ConfigsChanged) and event.resource.type == ResourceType.BROKER:
            self.start()

    @property
    def throttled_bytes(self) -> tuple[int, int]:
        """Bytes sent and fetched while subject to a quota, whether or not it delayed them."""
        return self._sent_bytes, self._copied_bytes

    # As leader

    def is_throttled(self, partition: Partition, follower: int) -> bool:
        """Whether a follower currently gets no records of the partition; it retries soon."""
        return self._slows_sending(partition, follower) and self._sending.wait_ms(self._clock.monotonic_ms()) > 0

    def sent(self, partition: Partition, follower: int, count: int) -> None:
        if self._slows_sending(partition, follower):
            self._sent_bytes += count
            self._sending.copied(count, self._clock.monotonic_ms())

    def _slows_sending(self, partition: Partition, follower: int) -> bool:
        """Whether the quota applies: the list contains the sending replica, which is this broker."""
        listed = partition.log.config.leader_replication_throttled_replicas
        return is_listed(listed, partition.index, self._broker.node_id) and follower not in partition.isr

    # As follower

    def wait_s(self, partition: Partition) -> float:
        """Returns how long the partition is excluded from fetches."""
        if not self._slows_copying(partition):
            return 0.0
        return self._copying.wait_ms(self._clock.monotonic_ms()) / 1000

    def copied(self, partition: Partition, count: int) -> None:
        if self._slows_copying(partition):
            self._copied_bytes += count
            self._copying.copied(count, self._clock.monotonic_ms())

    def _slows_copying(self, partition: Partition) -> bool:
        me = self._broker.node_id
        listed = partition.log.config.follower_replication_throttled_replicas
        return is_listed(listed, partition.index, me) and me not in partition.isr
