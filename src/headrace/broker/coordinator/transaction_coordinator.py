"""Transaction coordinator, as called by request handlers: state machines over `__transaction_state`.

A request that arrives while the previous transaction is being completed (`transaction_runtime.py`) waits for the
completion for a short time, instead of returning CONCURRENT_TRANSACTIONS at once.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinator.errors import NotCoordinator
from headrace.broker.coordinator.internal_topic import InternalTopicManager
from headrace.broker.coordinator.leadership_check import confirm_leadership
from headrace.broker.coordinator.remote_requests import add_partitions_at, producer_state_snapshot
from headrace.broker.coordinator.transaction_runtime import TransactionRuntime
from headrace.broker.replica.partition import Partition
from headrace.core.coordinator import CoordinatorTime, RequestId, partition_for
from headrace.core.image.deltas import MetadataDelta
from headrace.core.image.model import NO_LEADER
from headrace.core.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.core.transaction.coordinator_shard import (
    TransactionConfig,
    TransactionCoordinatorShard,
    TransactionDecision,
    TransactionFact,
)
from headrace.core.transaction.errors import ConcurrentTransactions, ProducerIdNeeded
from headrace.core.transaction.metadata import ProducerIdentity, TransactionMetadata
from headrace.model.errors import ErrorCode, RequestError
from headrace.model.ids import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.server import Broker

# How long a request waits for the completion of the previous transaction. Many times longer than a completion takes,
# and shorter than clients' request timeouts.
COMPLETION_WAIT_S = 1.0

Decide = Callable[[TransactionCoordinatorShard, RequestId, CoordinatorTime, int | None], TransactionDecision]


class TransactionCoordinator:
    """Operations of request handlers on transactions."""

    def __init__(self, broker: "Broker") -> None:
        settings = broker.settings
        self._broker = broker
        config = TransactionConfig(
            timeout_ms_max=settings.integer("transaction.max.timeout.ms"),
            id_expiration_ms=settings.integer("transactional.id.expiration.ms"),
            id_expiration_check_ms=settings.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
        )
        self.runtime = TransactionRuntime(broker, lambda: TransactionCoordinatorShard(config))
        self.verifies = settings.flag("transaction.partition.verification.enable")
        self.topic = InternalTopicManager(
            broker,
            self.runtime,
            TRANSACTIONS_TOPIC,
            partitions=settings.integer("transaction.state.log.num.partitions"),
            replication_factor=settings.integer("transaction.state.log.replication.factor"),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(settings.integer("transaction.state.log.min.isr")),
                "segment.bytes": str(settings.integer("transaction.state.log.segment.bytes")),
                "unclean.leader.election.enable": "false",
            },
        )

    def start(self) -> None:
        self.topic.lead()

    def follow(self, event: MetadataDelta) -> None:
        self.topic.follow(event)

    async def close(self) -> None:
        await self.runtime.close()

    async def leader_of(self, transactional_id: str) -> int:
        """Returns the broker that coordinates the transactional id. The first lookup creates the topic."""
        topic = await self.topic.ensure()
        return topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader

    def elsewhere(self, transactional_id: str) -> int | None:
        """Returns the coordinator of the transactional id if it is another broker; None also if it has no leader."""
        topic = self._broker.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        return None if leader in (NO_LEADER, self._broker.node_id) else leader

    # Requests

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        reply: ProducerIdentity = await self._decide(
            transactional_id,
            lambda machine, ticket, now, fresh_id: machine.init_producer_id(
                ticket, transactional_id, timeout_ms, expected, fresh_id=fresh_id, now_ms=now
            ),
        )
        return reply

    async def add_partitions(
        self,
        transactional_id: str,
        owner: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        *,
        client_version: int = 0,
    ) -> None:
        """Returns when the partitions are committed to the transaction. Nothing may be written to them before."""
        wanted = frozenset(partitions)
        await self._decide(
            transactional_id,
            lambda machine, ticket, now, _: machine.add_partitions(
                ticket, transactional_id, owner, wanted, client_version=client_version, now_ms=now
            ),
        )

    async def end(
        self, transactional_id: str, owner: ProducerIdentity, *, commit: bool, client_version: int
    ) -> ProducerIdentity:
        reply: ProducerIdentity = await self._decide(
            transactional_id,
            lambda machine, ticket, now, fresh_id: machine.end(
                ticket,
                transactional_id,
                owner,
                commit=commit,
                client_version=client_version,
                fresh_id=fresh_id,
                now_ms=now,
            ),
        )
        return reply

    def check_partition(self, transactional_id: str, owner: ProducerIdentity, place: TopicPartition) -> None:
        """Raises unless the producer's open transaction contains the partition."""
        self.runtime.shard_for(transactional_id).machine.check_partition(transactional_id, owner, place)

    async def add_offsets(
        self, transactional_id: str, owner: ProducerIdentity, group_id: str, *, client_version: int = 0
    ) -> None:
        """Adds the group's partition of `__consumer_offsets` to the transaction."""
        await self._broker.groups.leader_of(group_id)  # the first lookup creates the topic
        place = self._place_of_offsets(group_id)
        elsewhere = self.elsewhere(transactional_id)
        if elsewhere is None:
            await self.add_partitions(transactional_id, owner, (place,), client_version=client_version)
        else:
            await self._ask(elsewhere, transactional_id, owner, place, verify_only=False)

    async def check_offsets(self, transactional_id: str, owner: ProducerIdentity, group_id: str) -> None:
        """Raises unless the producer's open transaction contains the group's partition of `__consumer_offsets`."""
        if not self.verifies:
            return
        place, elsewhere = self._place_of_offsets(group_id), self.elsewhere(transactional_id)
        if elsewhere is None:
            self.check_partition(transactional_id, owner, place)
            return
        before = producer_state_snapshot(self._broker, owner, place)
        await self._ask(elsewhere, transactional_id, owner, place, verify_only=True)
        if producer_state_snapshot(self._broker, owner, place) != before:
            raise NotCoordinator("the transaction may have ended since it was verified")

    async def _ask(
        self,
        coordinator: int,
        transactional_id: str,
        owner: ProducerIdentity,
        place: TopicPartition,
        *,
        verify_only: bool,
    ) -> None:
        from headrace.broker.coordinator.add_partitions_manager import refusal

        codes = await add_partitions_at(
            self._broker, coordinator, transactional_id, owner, (place,), verify_only=verify_only
        )
        if codes.get(place, ErrorCode.NOT_COORDINATOR) != ErrorCode.NONE:
            raise refusal(codes.get(place, ErrorCode.NOT_COORDINATOR))

    def _place_of_offsets(self, group_id: str) -> TopicPartition:
        return TopicPartition(OFFSETS_TOPIC, self._broker.groups.runtime.partition_of(group_id))

    def describe(self, transactional_id: str) -> TransactionMetadata:
        return self.runtime.shard_for(transactional_id).machine.describe(transactional_id)

    def all(self) -> Iterator[TransactionMetadata]:
        for shard in self.runtime.shards():
            yield from shard.machine.transactions.values()

    async def _decide(self, transactional_id: str, decide: Decide) -> Any:
        fresh_id: int | None = None
        give_up_at = asyncio.get_running_loop().time() + COMPLETION_WAIT_S
        while True:
            try:
                return await self._decided(transactional_id, partial(_with_id, decide, fresh_id))
            except ProducerIdNeeded:
                fresh_id = await self._broker.producer_ids.take()
            except ConcurrentTransactions:
                left_s = give_up_at - asyncio.get_running_loop().time()
                if left_s <= 0 or not await self.runtime.completed(transactional_id, left_s):
                    raise

    async def _decided(
        self,
        transactional_id: str,
        decide: Callable[[TransactionCoordinatorShard, RequestId, CoordinatorTime], TransactionDecision],
    ) -> Any:
        """Returns the reply. A reply from memory alone is returned only if this broker is still the coordinator.

        A replaced coordinator could reply, from the state of an earlier transaction, that a request is already
        completed, or fail it permanently.
        """
        partition = self.runtime.shard_for(transactional_id).partition
        facts: list[TransactionFact] = []

        def decide_and_note(
            machine: TransactionCoordinatorShard, ticket: RequestId, now: CoordinatorTime
        ) -> TransactionDecision:
            decision = decide(machine, ticket, now)
            facts.extend(decision.facts)
            return decision

        try:
            reply = await self.runtime.call(transactional_id, decide_and_note)
        except RequestError as error:
            if not error.retriable:
                await self._check_not_replaced(partition)
            raise
        if not facts:
            await self._check_not_replaced(partition)
        return reply

    async def _check_not_replaced(self, partition: Partition) -> None:
        membership = self._broker.membership
        if (
            membership is not None
            and membership.may_be_fenced
            and not await confirm_leadership(partition, lambda: True)
        ):
            raise NotCoordinator("another broker may look after the transaction by now")


def _with_id(
    decide: Decide, fresh_id: int | None, machine: TransactionCoordinatorShard, ticket: RequestId, now: CoordinatorTime
) -> TransactionDecision:
    return decide(machine, ticket, now, fresh_id)
