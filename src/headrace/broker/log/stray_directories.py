"""Removes stray directories, which belong to no replica of this broker, when that is safe, and counts the others.

A directory becomes a stray at the start of the broker or when its name is needed: the replica was moved away or its
topic deleted while the broker was not running. The rules are in `core/controller/stray_replicas.py`.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.core.controller.stray_replicas import StrayReplica, Verdict, judge
from headrace.model.errors import StorageError
from headrace.storage.directory.stray_directories import DELETE_SUFFIX, Stray, StrayTotals, find_strays

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)


class Strays:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._one_at_a_time = asyncio.Lock()  # finding strays writes files as well

    async def look(self) -> None:
        """Counts the stray directories, for the metrics."""
        async with self._one_at_a_time:
            await self._find()

    async def _find(self) -> list[Stray]:
        broker = self._broker
        log_dir = broker.log_dir
        found = await asyncio.to_thread(find_strays, log_dir.files, log_dir.path, broker.clock.wall_ms())
        log_dir.strays = StrayTotals(len(found), sum(one.size_bytes for one in found))
        return found

    async def remove(self) -> None:
        """Removes the stray directories whose removal is due."""
        async with self._one_at_a_time:
            due = [one for one in await self._find() if self._is_due(one)]
            if due:
                await asyncio.to_thread(self._remove, due)
                await self._find()

    def _is_due(self, stray: Stray) -> bool:
        replica = StrayReplica(
            stray.topic_id, stray.name.partition.partition, stray.newest_epoch, stray.is_partition, stray.has_records
        )
        verdict = judge(replica, self._broker.image, self._broker.node_id)
        retention_ms = self._broker.settings.integer("log.stray.retention.ms")
        age_ms = self._broker.clock.wall_ms() - stray.since_ms
        return verdict is Verdict.REMOVE or (verdict is Verdict.EXPIRE and 0 <= retention_ms <= age_ms)

    def _remove(self, strays: list[Stray]) -> None:
        """Renames a directory before it removes it, so that the next start completes an interrupted removal."""
        files = self._broker.log_dir.files
        for stray in strays:
            aside = f"{self._broker.log_dir.path}/{stray.name._replace(suffix=DELETE_SUFFIX)}"
            try:
                files.rename(stray.path, aside)
                files.remove_tree(aside)
            except (StorageError, FileNotFoundError) as error:
                log.error("Stray directory %s not removed; retrying later: %s", stray.path, error)
            else:
                log.warning("Removed stray directory %s: topic id %s", stray.path, stray.topic_id)
