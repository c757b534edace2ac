"""Proposes ISR changes for the partitions that this broker leads, and has them committed to the cluster metadata.

`core/replica/leader_state.py` computes the ISR. A proposal whose outcome is unknown is repeated until it is known.
Until then, the high watermark waits for every replica that may be in the ISR.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.replica.partition import Partition
from headrace.core.controller.alter_partition import AlterPartitionItem, is_eligible
from headrace.core.image.deltas import MetadataDelta, PartitionsChanged, SessionChanged
from headrace.core.replica.leader_state import PendingIsr
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

# Interval at which all ISRs are checked for lagging replicas: half of replica.lag.time.max.ms, and at most this long,
# so that a failed proposal is retried soon.
LOOK_S_MAX = 2.0
RETRY_S = 0.2


class AlterPartitionManager:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._lag_ms_max = broker.settings.integer("replica.lag.time.max.ms")
        self._news: dict[Partition, None] = {}
        self._unsettled: dict[Partition, tuple[AlterPartitionItem, PendingIsr]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="isr keeper")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def fetched(self, partition: Partition, broker: int) -> None:
        """Schedules a check of the partition's ISR if the follower that has fetched is not in it."""
        if broker not in partition.isr:
            self._news[partition] = None
            self._wake.set()

    def follow(self, event: MetadataDelta) -> None:
        """Schedules checks: after a change of states or sessions, more replicas may be eligible for the ISR."""
        if isinstance(event, SessionChanged):
            self._look_at_all()
        elif isinstance(event, PartitionsChanged):
            for partition in self._broker.partitions.of_topic(event.topic):
                self._news[partition] = None
        self._wake.set()

    def _look_at_all(self) -> None:
        for partition in self._broker.partitions.all():
            if partition.leadership is not None and len(partition.leadership.state.replicas) > 1:
                self._news[partition] = None

    async def _run(self) -> None:
        look_s = min(self._lag_ms_max / 2000, LOOK_S_MAX)
        while True:
            try:
                async with asyncio.timeout(RETRY_S if self._unsettled else look_s):
                    await self._wake.wait()
            except TimeoutError:
                self._look_at_all()
            self._wake.clear()
            try:
                await self._propose()
            except HeadraceError as error:
                log.warning("the ISRs cannot be changed now: %s", error)
                await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("the ISRs cannot be changed")
                await asyncio.sleep(RETRY_S)

    async def _propose(self) -> None:
        news, self._news = self._news, {}
        for partition in news:
            if partition not in self._unsettled:
                self._prepare(partition)
        for partition in [one for one, (proposal, _) in self._unsettled.items() if _is_over(one, proposal)]:
            del self._unsettled[partition]
        if not self._unsettled:
            return
        asked = dict(self._unsettled)
        refused = await self._broker.controller.states.alter_partition([proposal for proposal, _ in asked.values()])
        for partition, (proposal, proposed) in asked.items():
            if _is_over(partition, proposal):
                self._unsettled.pop(partition, None)
            elif proposal in refused:
                assert partition.leadership is not None, "else it would be over"
                partition.leadership.refused(proposed)
                self._unsettled.pop(partition, None)

    def _prepare(self, partition: Partition) -> None:
        leadership = partition.leadership
        if leadership is None or partition.failure is not None:
            return
        proposed = leadership.proposal(
            partition.log_end_offset,
            partition.high_watermark,
            partition.log.config.min_insync_replicas,
            self._broker.clock.monotonic_ms(),
            self._lag_ms_max,
            lambda broker, epoch: is_eligible(self._broker.image, broker, epoch),
        )
        if proposed is None:
            return
        leadership.proposed(proposed)
        state = leadership.state
        self._unsettled[partition] = (
            AlterPartitionItem(
                partition.topic_id,
                partition.index,
                state.leader_epoch,
                state.partition_epoch,
                proposed.isr,
                proposed.joining,
            ),
            proposed,
        )


def _is_over(partition: Partition, proposal: AlterPartitionItem) -> bool:
    """Returns whether the metadata has moved past the state that the proposal was made for.

    A partition that was deleted, moved or taken offline no longer follows the metadata and commits nothing.
    """
    leadership = partition.leadership
    return (
        partition.failure is not None
        or leadership is None
        or leadership.state.leader_epoch != proposal.leader_epoch
        or leadership.state.partition_epoch != proposal.partition_epoch
    )
