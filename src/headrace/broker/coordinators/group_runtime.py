"""Runs the group coordinator's state machines, and removes offsets that no request removes."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinator_runtime import CoordinatorRuntime
from headrace.broker.coordinators.shard import Shard
from headrace.core.coordinator import Decision
from headrace.core.group.machine import GroupMachine
from headrace.core.group.offsets import REMOVED_MAX
from headrace.core.internal_topics import OFFSETS_TOPIC
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

# Between attempts to remove the offsets of a deleted topic, while the partition is being read or rejects appends.
REMOVAL_RETRY_S = 0.1
REMOVAL_RETRY_S_MAX = 5.0

Removal = Callable[[GroupMachine], Decision[Any]]


class GroupRuntime(CoordinatorRuntime[GroupMachine]):
    def __init__(self, broker: "Broker", new_machine: Callable[[], GroupMachine]) -> None:
        commit_timeout_ms = broker.settings.integer("offsets.commit.timeout.ms")
        # Without a record a group starts from an older commit, or without its members: its consumers repeat records.
        super().__init__(broker, OFFSETS_TOPIC, new_machine, commit_timeout_ms=commit_timeout_ms, skips_corruption=True)

    async def _load(self, shard: Shard[GroupMachine]) -> None:
        """A topic may have been deleted and created again while the partition had no coordinator."""
        await super()._load(shard)
        if shard.is_loaded:
            self._remove(shard.partition.index, GroupMachine.remove_outdated, REMOVAL_RETRY_S)

    def remove_everywhere(self, decide: Removal, *, retries: bool = True) -> None:
        for shard in self.led():
            self._remove(shard.partition.index, decide, REMOVAL_RETRY_S if retries else None)

    def topic_created(self, topic: str) -> None:
        """Partitions that are being read are not concerned: they remove what is outdated once they are loaded."""
        for shard in self.shards():
            self._remove(shard.partition.index, lambda machine: machine.topic_created(topic), REMOVAL_RETRY_S)

    def _remove(self, index: int, decide: Removal, retry_s: float | None) -> None:
        """Append tombstones; with `retry_s`, until the partition takes them or is led elsewhere.

        A partition that is loaded again meanwhile has another machine, which decides then. What one decision leaves
        over is removed in the next iteration of the event loop: requests and the broker's session do not wait for it.
        """
        shard = self.led_shard(index)
        if shard is None:
            return
        removed = 0

        def counted(machine: GroupMachine) -> Decision[Any]:
            nonlocal removed
            decision = decide(machine)
            removed = len(decision.facts)
            return decision

        try:
            self.decide(shard, counted)
        except Exception as error:
            is_expected = isinstance(error, HeadraceError)
            log.error("%s: offsets could not be removed: %s", shard.partition, error, exc_info=not is_expected)
            if retry_s is not None:
                next_s = min(2 * retry_s, REMOVAL_RETRY_S_MAX)
                asyncio.get_running_loop().call_later(retry_s, self._remove, index, decide, next_s)
            return
        if removed >= REMOVED_MAX:
            asyncio.get_running_loop().call_soon(self._remove, index, decide, retry_s)
