"""Completes transactions whose outcome is decided: writes a marker to every partition that they wrote to.

PREPARE committed in the log → marker in every partition → COMPLETE in the log.

After a restart or a coordinator failover, a transaction continues from the state in the log.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinator.context import CoordinatorContext
from headrace.broker.coordinator.runtime import CoordinatorRuntime
from headrace.broker.coordinator.transaction_marker_manager import (
    MarkerSender,
    Outcome,
    committed,
    newest_coordinator_epoch,
)
from headrace.broker.replica.partition import Partition
from headrace.core.controller.restored_metadata import PRODUCER_ID_MAX
from headrace.core.coordinator import Decision
from headrace.core.topic import TRANSACTIONS_TOPIC
from headrace.core.transaction.coordinator_shard import TransactionCoordinatorShard
from headrace.core.transaction.metadata import PREPARED, TransactionMetadata
from headrace.model.errors import CoordinatorFenced, HeadraceError, InvalidProducerEpoch, UnknownTopic
from headrace.model.ids import TopicPartition
from headrace.storage.log_types import Producer

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

# Backoff for a marker that a partition rejects. At first its group coordinator may only be loading; later its disk or
# its leader is gone.
MARKER_RETRY_S = 0.02
MARKER_RETRY_S_MAX = 1.0


class TransactionRuntime(CoordinatorRuntime[TransactionCoordinatorShard]):
    """Coordinator runtime that completes prepared transactions."""

    def __init__(self, broker: "Broker", new_machine: Callable[[], TransactionCoordinatorShard]) -> None:
        super().__init__(broker, TRANSACTIONS_TOPIC, new_machine)
        self._completions: dict[str, asyncio.Task[None]] = {}  # the newest task of each transactional id
        # Including those of earlier leader epochs, which end by themselves.
        self._running: set[asyncio.Task[None]] = set()
        self.markers = MarkerSender(broker)

    def carry_out(self, shard: CoordinatorContext[TransactionCoordinatorShard], decision: Decision[Any]) -> None:
        super().carry_out(shard, decision)
        for fact in decision.facts:
            if isinstance(fact, TransactionMetadata) and fact.state in PREPARED:
                self._complete(shard, fact)

    def lead(self, partition: Partition) -> None:
        super().lead(partition)
        shard = self._shards[partition.index]
        if shard.is_loaded:  # an empty partition, which was not loaded: its timers are set here
            self.carry_out(shard, shard.machine.loaded(self.now()))

    async def replayed(self, shard: CoordinatorContext[TransactionCoordinatorShard]) -> None:
        """Raises the next producer id above those in the log, which restored metadata could allocate again."""
        used = shard.machine.highest_producer_id()
        if self._broker.image.next_producer_id <= used <= PRODUCER_ID_MAX:
            log.warning("Metadata is older than the producer id %d of a transactional id; raising the next one", used)
            await self._broker.controller.raise_producer_ids(used)

    async def _load(self, shard: CoordinatorContext[TransactionCoordinatorShard]) -> None:
        await super()._load(shard)
        if shard.is_loaded:
            for transaction in shard.machine.prepared():
                self._complete(shard, transaction)

    def _complete(self, shard: CoordinatorContext[TransactionCoordinatorShard], prepared: TransactionMetadata) -> None:
        name = prepared.transactional_id
        task = asyncio.create_task(self._bring_markers(shard, prepared, shard.partition.log_end_offset))
        self._completions[name] = task
        self._running.add(task)

        def done(_: "asyncio.Task[None]") -> None:
            self._running.discard(task)
            if self._completions.get(name) is task:
                del self._completions[name]

        task.add_done_callback(done)

    async def _bring_markers(
        self, shard: CoordinatorContext[TransactionCoordinatorShard], prepared: TransactionMetadata, end_offset: int
    ) -> None:
        """Completes the transaction. A step that fails is retried while this broker is its coordinator."""
        pause_s = MARKER_RETRY_S
        while self.leads(shard):
            try:
                await self._complete_once(shard, prepared, end_offset)
                return
            except Exception as error:
                if not self.leads(shard):
                    break
                is_expected = isinstance(error, HeadraceError)
                log.error(
                    "Transaction of %r is not completed; retrying in %g s: %s",
                    prepared.transactional_id,
                    pause_s,
                    error,
                    exc_info=not is_expected,
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MARKER_RETRY_S_MAX)
        log.info("Transaction of %r is left to the next coordinator", prepared.transactional_id)

    async def _complete_once(
        self, shard: CoordinatorContext[TransactionCoordinatorShard], prepared: TransactionMetadata, end_offset: int
    ) -> None:
        await committed(shard.partition, end_offset)
        await self._confirm_unknown(prepared)
        outcome = Outcome(
            Producer(prepared.producer_id, prepared.epoch),
            prepared.commits,
            shard.partition.leader_epoch,
            prepared.uses_tv2,
        )
        if prepared.partitions:
            await asyncio.gather(*(self._bring_marker(shard, one, outcome) for one in sorted(prepared.partitions)))
        await self._note_completed(shard, prepared)

    async def _confirm_unknown(self, prepared: TransactionMetadata) -> None:
        """Confirms the metadata if it lacks a partition. If it still does afterwards, the partition was deleted.

        Any broker may add a new partition to the transaction. If this broker's metadata were stale, its records would
        stay open without a marker.
        """
        partitions = self._broker.partitions
        if any(partitions.current_leader(place.topic, place.partition) is None for place in prepared.partitions):
            await self._broker.controller.confirm()

    async def _note_completed(
        self, shard: CoordinatorContext[TransactionCoordinatorShard], prepared: TransactionMetadata
    ) -> None:
        """Appends COMPLETE. The markers are written, so only this append is retried."""
        pause_s = MARKER_RETRY_S
        while self.leads(shard):
            try:
                self.decide(shard, lambda machine: machine.markers_written(prepared, self.now()))
                return
            except HeadraceError as error:
                log.error("%s: COMPLETE of %r is not written: %s", shard.partition, prepared.transactional_id, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MARKER_RETRY_S_MAX)

    async def _bring_marker(
        self, shard: CoordinatorContext[TransactionCoordinatorShard], place: TopicPartition, outcome: Outcome
    ) -> None:
        pause_s = MARKER_RETRY_S
        while self.leads(shard):
            try:
                await self.markers.write(place, outcome)
                return
            except UnknownTopic:
                return  # deleted, together with the open records
            except InvalidProducerEpoch as error:
                log.warning("%s takes no marker of %s: %s", place, outcome.producer, error)
                return  # a marker with a newer epoch has ended the transaction
            except HeadraceError as error:
                if isinstance(error, CoordinatorFenced):
                    await self._lead_above(shard.partition, outcome.coordinator_epoch, error)
                if pause_s == MARKER_RETRY_S:  # once per transaction: a partition may reject markers for hours
                    log.warning("%s rejected a marker of %s; retrying: %s", place, outcome.producer, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MARKER_RETRY_S_MAX)
        self.markers.forget(place)

    async def _lead_above(self, partition: Partition, fenced_epoch: int, error: CoordinatorFenced) -> None:
        """Starts a leader epoch higher than any marker's, unless another broker has replaced this coordinator.

        The transaction is still open in the partition. If there is another coordinator, it completes it. Otherwise
        the epoch that fenced this one is from an administrator's marker, or from a coordinator before the metadata
        was restored. In the new epoch this broker reloads the coordinator partition and completes the transaction.
        """
        known = self._broker.partitions.current_leader(partition.topic, partition.index)
        if known != (self._broker.node_id, fenced_epoch):
            return
        epoch = newest_coordinator_epoch(self._broker)
        log.warning(
            "%s: beginning leader epoch %d, because %d was fenced: %s", partition, epoch + 1, fenced_epoch, error
        )
        try:
            await self._broker.controller.states.lead_above({partition.topic: {partition.index: epoch}})
        except HeadraceError as failure:
            log.warning("%s: the leader epoch could not be raised; retrying: %s", partition, failure)

    async def completed(self, transactional_id: str, wait_s: float) -> bool:
        """Waits for a transaction that is being completed. Returns whether it was completed within `wait_s`."""
        task = self._completions.get(transactional_id)
        if task is None:
            return False
        await asyncio.wait({task}, timeout=wait_s)
        return task.done()

    async def close(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self.markers.close()
        await super().close()
