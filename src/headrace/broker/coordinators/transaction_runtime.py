"""Transactions that are decided are completed: the outcome is brought to every partition that they wrote to.

    PREPARE in the log, committed → a marker into every partition → COMPLETE in the log

What a restart or another coordinator's end interrupts goes on where the log says it was.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinator_runtime import CoordinatorRuntime
from headrace.broker.coordinators.markers import Outcome, committed, write_marker
from headrace.broker.coordinators.shard import Shard
from headrace.broker.partition import Partition
from headrace.core.coordinator import Decision
from headrace.core.internal_topics import TRANSACTIONS_TOPIC
from headrace.core.transaction.machine import TransactionMachine
from headrace.core.transaction.values import PREPARED, Transaction
from headrace.model.errors import CoordinatorFenced, HeadraceError, InvalidProducerEpoch, UnknownTopic
from headrace.model.ids import TopicPartition
from headrace.storage.log_values import Producer

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

# Between two tries to bring a marker to a partition that does not take it: at first its coordinator may only be
# loading, later its disk or its leader is gone.
MARKER_RETRY_S = 0.02
MARKER_RETRY_S_MAX = 1.0


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
                await asyncio.gather(*(self._bring_marker(shard, one, outcome) for one in sorted(prepared.partitions)))
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
