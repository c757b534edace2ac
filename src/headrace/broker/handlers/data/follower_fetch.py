"""Follower fetches: their offsets advance the high watermark, and they read uncommitted records."""

from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.network.connection import Connection
from headrace.broker.replica.partition import Partition
from headrace.core.fetch_session import CachedPartition, FetchSession
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, PartitionRow
from headrace.security.authorization import CLUSTER_NAME, Operation, ResourceType, access_for

if TYPE_CHECKING:
    from headrace.broker.server import Broker

REPLICATE = access_for(ApiKey.FETCH, ResourceType.CLUSTER, Operation.CLUSTER_ACTION)

TopicKey = str | UUID
Wanteds = list[tuple[TopicKey, FetchPartition]]


class ReplicaReads:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._clock = broker.clock
        self._partitions = broker.partitions
        self._authorizer = broker.authorizer
        self._internal_listener = broker.settings.internal_listener

    def check(self, connection: Connection, request: FetchRequest) -> ErrorCode | None:
        """Returns an error unless the request is from a registered broker: replica fetches read uncommitted records
        and advance the high watermark.

        The broker epoch must be the current one: records that an earlier process fetched may be lost, and untrusted
        clients do not have the epoch. A broker whose registration has not reached this one yet retries.
        """
        if connection.listener != self._internal_listener or not self._authorizer.allows(
            connection.principal, connection.client_host, REPLICATE, CLUSTER_NAME
        ):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        known = self._broker.image.brokers.get(request.replica_id)
        if known is None or known.epoch != request.replica_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        return None

    def with_news(self, session: FetchSession, request: FetchRequest) -> tuple[Wanteds, list[Partition]]:
        """Returns the partitions to read and the idle ones.

        A follower has hundreds of partitions in its session, and nearly all of them are idle at each fetch.
        """
        wanted: Wanteds = []
        idle: list[Partition] = []
        for (topic, index), cached in session.partitions.items():
            partition = self._partitions.held(topic, index)
            if partition is not None and _is_idle(partition, cached, request):
                idle.append(partition)
            else:
                wanted.append((topic, cached.wanted))
        return wanted, idle

    def note_idle(self, request: FetchRequest, idle: list[Partition]) -> None:
        """Records that the follower has fetched idle partitions again."""
        now_ms = self._clock.monotonic_ms()
        for partition in idle:
            assert partition.leadership is not None, "else it is not idle"
            partition.leadership.followers[request.replica_id].fetched_again(now_ms)
            if partition.waiters.awaits_fetch:
                partition.waiters.tell_fetched()

    def note_progress(self, request: FetchRequest, wanted: list[tuple[TopicKey, FetchPartition]]) -> None:
        """Records the follower's fetch offsets, also of partitions without new records."""
        now_ms = self._clock.monotonic_ms()
        for topic, one in wanted:
            partition = self._partitions.held(topic, one.partition)
            if partition is None or partition.leadership is None or partition.failure is not None:
                continue  # its row reports the error
            if one.current_leader_epoch == partition.leader_epoch:
                partition.sent.fetched(request.replica_id)
                partition.update_follower_fetch_state(
                    request.replica_id,
                    request.replica_epoch,
                    one.fetch_offset,
                    one.last_fetched_epoch,
                    now_ms,
                    one.log_start_offset,
                )
                self._has_fetched(partition, request.replica_id)

    def _has_fetched(self, partition: Partition, broker: int) -> None:
        membership = self._broker.membership
        if membership is not None:
            membership.isr_keeper.fetched(partition, broker)

    def read(
        self, partition: Partition, replica: int, wanted: FetchPartition, room: int, *, is_first: bool
    ) -> PartitionRow:
        partition.check_leader(wanted.current_leader_epoch)
        partition.check_follower(replica)
        row = PartitionRow(
            partition.index,
            ErrorCode.NONE,
            partition.high_watermark,
            partition.high_watermark,
            partition.log.log_start_offset,
        )
        if wanted.fetch_offset < partition.log.log_start_offset:
            # Before the epochs are compared: an emptied log has none.
            return row._replace(error=ErrorCode.OFFSET_OUT_OF_RANGE)
        diverging = partition.divergence_of(
            replica, wanted.fetch_offset, wanted.last_fetched_epoch, wanted.log_start_offset
        )
        if diverging is not None:
            return row._replace(diverging=diverging)
        if (room <= 0 and not is_first) or self._is_held_back(partition, replica):
            return row
        bytes_max = min(wanted.bytes_max, room)
        records = partition.sent.read(partition.log, replica, wanted.fetch_offset, bytes_max)
        if records is not None and records.length > bytes_max and not is_first:
            records = None
        if records is not None:
            partition.sent.sends(partition.log, replica, wanted.fetch_offset, records)
            self._sends(partition, replica, records.length)
        return row._replace(records=records)

    def answered(self, session: FetchSession, topic: TopicKey, wanted: FetchPartition) -> None:
        """Marks a partition as read without an error: until it changes it may count as idle."""
        cached = session.partitions.get((topic, wanted.partition))
        if cached is not None:
            cached.answered = wanted

    def _is_held_back(self, partition: Partition, replica: int) -> bool:
        membership = self._broker.membership
        return membership is not None and membership.throttles.is_throttled(partition, replica)

    def _sends(self, partition: Partition, replica: int, count: int) -> None:
        membership = self._broker.membership
        if membership is not None:
            membership.throttles.sent(partition, replica, count)


def _is_idle(partition: Partition, cached: CachedPartition, request: FetchRequest) -> bool:
    """Whether all records are committed, and an in-sync follower has them and has received the high watermark."""
    wanted, end, leadership = cached.wanted, partition.log.log_end_offset, partition.leadership
    if (
        cached.answered is not wanted
        or wanted.fetch_offset != end
        or cached.high_watermark != end
        or partition.high_watermark != end
        or cached.log_start_offset != partition.log.log_start_offset
        or wanted.current_leader_epoch != partition.leader_epoch
        or leadership is None
        or partition.failure is not None
        or request.replica_id not in partition.isr
    ):
        return False
    follower = leadership.followers.get(request.replica_id)
    return follower is not None and follower.end_offset == end and follower.broker_epoch == request.replica_epoch
