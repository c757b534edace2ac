"""The transaction coordinator: machines over `__transaction_state`, and the markers that their decisions call for.

    EndTxn → PREPARE in the log, committed → answer, and a marker into every partition → COMPLETE in the log

What a restart interrupts goes on where the log says it was. A request that comes while the transaction before is being
completed waits for that a little, instead of sending the client away to ask again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinator_runtime import CoordinatorRuntime
from headrace.broker.coordinators.internal_topic import InternalTopic
from headrace.broker.coordinators.markers import Outcome, committed, write_marker
from headrace.broker.coordinators.remote import add_partitions_at
from headrace.broker.coordinators.shard import Shard
from headrace.broker.partition import Partition
from headrace.core.cluster.events import Event
from headrace.core.cluster.values import NO_LEADER
from headrace.core.coordinator import Decision, Moment, Ticket
from headrace.core.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.core.java_hash import partition_for
from headrace.core.transaction.errors import ConcurrentTransactions, ProducerIdNeeded
from headrace.core.transaction.machine import TransactionConfig, TransactionDecision, TransactionMachine
from headrace.core.transaction.values import PREPARED, ProducerIdentity, Transaction
from headrace.model.errors import CoordinatorFenced, ErrorCode, HeadraceError, InvalidProducerEpoch, UnknownTopic
from headrace.model.ids import TopicPartition
from headrace.storage.log_values import Producer

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

# How long a request waits for the transaction before it to be completed: many times what that takes, and short
# enough that a client does not believe the request lost.
COMPLETION_WAIT_S = 1.0
# Between two tries to bring a marker to a partition that does not take it: at first its coordinator may only be
# loading, later its disk or its leader is gone.
MARKER_RETRY_S = 0.02
MARKER_RETRY_S_MAX = 1.0

Decide = Callable[[TransactionMachine, Ticket, Moment, int | None], TransactionDecision]


class TransactionRuntime(CoordinatorRuntime[TransactionMachine]):
    """Sees to it that what is prepared gets completed."""

    def __init__(self, broker: "Broker", new_machine: Callable[[], TransactionMachine]) -> None:
        super().__init__(broker, TRANSACTIONS_TOPIC, new_machine)
        self._completions: dict[str, asyncio.Task[None]] = {}

    def carry_out(self, shard: Shard[TransactionMachine], decision: Decision[Any]) -> None:
        super().carry_out(shard, decision)
        for fact in decision.facts:
            if isinstance(fact, Transaction) and fact.state in PREPARED:
                self._complete(shard, fact)

    def lead(self, partition: Partition) -> None:
        super().lead(partition)
        shard = self._shards[partition.index]
        if shard.is_loaded:  # nothing was there to read; the timers are wanted all the same
            self.carry_out(shard, shard.machine.loaded(self.now()))

    async def _load(self, shard: Shard[TransactionMachine]) -> None:
        await super()._load(shard)
        if shard.is_loaded:
            for transaction in shard.machine.prepared():
                self._complete(shard, transaction)

    def _complete(self, shard: Shard[TransactionMachine], prepared: Transaction) -> None:
        name = prepared.transactional_id
        task = asyncio.create_task(self._bring_markers(shard, prepared, shard.partition.log_end_offset))
        self._completions[name] = task

        def done(_: "asyncio.Task[None]") -> None:
            if self._completions.get(name) is task:
                del self._completions[name]

        task.add_done_callback(done)

    async def _bring_markers(self, shard: Shard[TransactionMachine], prepared: Transaction, end_offset: int) -> None:
        try:
            await committed(shard.partition, end_offset)
            outcome = Outcome(
                Producer(prepared.producer_id, prepared.epoch),
                prepared.commits,
                shard.partition.leader_epoch,
                prepared.epoch_was_bumped,
            )
            if prepared.partitions:
                await asyncio.gather(*(self._bring_marker(shard, one, outcome) for one in prepared.partitions))
            if self._leads(shard):
                self.carry_out(shard, shard.machine.markers_written(prepared, self.now()))
        except HeadraceError as error:
            if self._leads(shard):
                log.error("the transaction of %r stays open until a restart: %s", prepared.transactional_id, error)
            else:
                log.info("the transaction of %r is left to the next coordinator: %s", prepared.transactional_id, error)

    async def _bring_marker(self, shard: Shard[TransactionMachine], place: TopicPartition, outcome: Outcome) -> None:
        pause_s = MARKER_RETRY_S
        while self._leads(shard):
            try:
                await write_marker(self._broker, place, outcome)
                return
            except UnknownTopic:
                return  # deleted, and the open records with it
            except (InvalidProducerEpoch, CoordinatorFenced) as error:
                log.warning("%s takes no marker of %s: %s", place, outcome.producer, error)
                return  # somebody newer has been there: nothing of this transaction can be open any more
            except HeadraceError as error:
                log.warning("%s does not take a marker, trying again: %s", place, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MARKER_RETRY_S_MAX)

    def _leads(self, shard: Shard[TransactionMachine]) -> bool:
        return self._shards.get(shard.partition.index) is shard

    async def completed(self, transactional_id: str, wait_s: float) -> bool:
        """Whether the transaction that was being completed is, within that time."""
        task = self._completions.get(transactional_id)
        if task is None:
            return False
        await asyncio.wait({task}, timeout=wait_s)
        return task.done()

    async def close(self) -> None:
        for task in list(self._completions.values()):
            task.cancel()
        await asyncio.gather(*self._completions.values(), return_exceptions=True)
        await super().close()


class TransactionCoordinator:
    """What handlers ask."""

    def __init__(self, broker: "Broker") -> None:
        settings = broker.settings
        self._broker = broker
        config = TransactionConfig(
            timeout_ms_max=settings.integer("transaction.max.timeout.ms"),
            id_expiration_ms=settings.integer("transactional.id.expiration.ms"),
            id_expiration_check_ms=settings.integer("transaction.remove.expired.transaction.cleanup.interval.ms"),
        )
        self.runtime = TransactionRuntime(broker, lambda: TransactionMachine(config))
        self.verifies = settings.flag("transaction.partition.verification.enable")
        self.topic = InternalTopic(
            broker,
            self.runtime,
            TRANSACTIONS_TOPIC,
            partitions=settings.integer("transaction.state.log.num.partitions"),
            replication_factor=settings.integer("transaction.state.log.replication.factor"),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "segment.bytes": str(settings.integer("transaction.state.log.segment.bytes")),
                "unclean.leader.election.enable": "false",
            },
        )

    def start(self) -> None:
        self.topic.lead()

    def follow(self, event: Event) -> None:
        self.topic.follow(event)

    async def close(self) -> None:
        await self.runtime.close()

    async def leader_of(self, transactional_id: str) -> int:
        """The broker that looks after the id. The first time anybody asks, the topic is made."""
        topic = await self.topic.ensure()
        return topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader

    def elsewhere(self, transactional_id: str) -> int | None:
        """The broker that looks after the id, if it is another one than this; None also while nobody is known."""
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
        """Returns when the log holds it for good: only then may anything be written to the partitions."""
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
        """Raise unless the producer's open transaction knows the partition."""
        self.runtime.shard_for(transactional_id).machine.check_partition(transactional_id, owner, place)

    async def add_offsets(
        self, transactional_id: str, owner: ProducerIdentity, group_id: str, *, client_version: int = 0
    ) -> None:
        """The transaction is about to commit offsets of the group."""
        await self._broker.groups.leader_of(group_id)  # makes the topic if nobody has needed it yet
        place = self._place_of_offsets(group_id)
        elsewhere = self.elsewhere(transactional_id)
        if elsewhere is None:
            await self.add_partitions(transactional_id, owner, (place,), client_version=client_version)
        else:
            await self._ask(elsewhere, transactional_id, owner, place, verify_only=False)

    async def check_offsets(self, transactional_id: str, owner: ProducerIdentity, group_id: str) -> None:
        """Raise unless the producer's open transaction knows that it commits offsets of the group."""
        if not self.verifies:
            return
        elsewhere = self.elsewhere(transactional_id)
        if elsewhere is None:
            self.check_partition(transactional_id, owner, self._place_of_offsets(group_id))
        else:
            await self._ask(elsewhere, transactional_id, owner, self._place_of_offsets(group_id), verify_only=True)

    async def _ask(
        self,
        coordinator: int,
        transactional_id: str,
        owner: ProducerIdentity,
        place: TopicPartition,
        *,
        verify_only: bool,
    ) -> None:
        from headrace.broker.coordinators.guard import refusal

        codes = await add_partitions_at(
            self._broker, coordinator, transactional_id, owner, (place,), verify_only=verify_only
        )
        if codes.get(place, ErrorCode.NOT_COORDINATOR) != ErrorCode.NONE:
            raise refusal(codes.get(place, ErrorCode.NOT_COORDINATOR))

    def _place_of_offsets(self, group_id: str) -> TopicPartition:
        return TopicPartition(OFFSETS_TOPIC, self._broker.groups.runtime.partition_of(group_id))

    def describe(self, transactional_id: str) -> Transaction:
        return self.runtime.shard_for(transactional_id).machine.describe(transactional_id)

    def all(self) -> Iterator[Transaction]:
        for shard in self.runtime.shards():
            yield from shard.machine.transactions.values()

    async def _decide(self, transactional_id: str, decide: Decide) -> Any:
        fresh_id: int | None = None
        give_up_at = asyncio.get_running_loop().time() + COMPLETION_WAIT_S
        while True:
            try:
                return await self.runtime.call(transactional_id, partial(_with_id, decide, fresh_id))
            except ProducerIdNeeded:
                fresh_id = await self._broker.producer_ids.take()
            except ConcurrentTransactions:
                left_s = give_up_at - asyncio.get_running_loop().time()
                if left_s <= 0 or not await self.runtime.completed(transactional_id, left_s):
                    raise


def _with_id(
    decide: Decide, fresh_id: int | None, machine: TransactionMachine, ticket: Ticket, now: Moment
) -> TransactionDecision:
    return decide(machine, ticket, now, fresh_id)
