"""Flush policies of this broker's topics. A policy takes effect once it is durably recorded in the data directory.

`flush.policy=replicated` acknowledges records before they are synced. After a host crash the broker must determine
which topics were affected, whatever their policy is by then (`storage/directory/unflushed_topics.py`).
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.config.values import LogConfig, log_config
from headrace.core.image.model import TopicImage
from headrace.model.errors import StorageError
from headrace.storage.directory.log_directory import LogDirectory

if TYPE_CHECKING:
    from headrace.broker.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)


def syncs_before_ack(config: LogConfig) -> bool:
    """Returns whether records are synced before they are acknowledged. Kafka's `flush.messages=1` implies it."""
    return config.flush_policy == "fsync" or config.flush_messages <= 1


class FlushPolicies:
    def __init__(self, partitions: "ReplicaManager", log_dir: LogDirectory, node_id: int, *, is_durable: bool) -> None:
        """`is_durable` is False in memory mode, where no record outlives the process."""
        self._partitions = partitions
        self._topics = log_dir.unsynced_topics
        self._node_id = node_id
        self._is_durable = is_durable
        self._synced_before: frozenset[UUID] = frozenset()  # topics that were fully synced at the last `forget_synced`

    def config_of(self, topic: TopicImage, broker_configs: Mapping[str, str]) -> LogConfig:
        """Returns the topic's configs, with flush.policy=fsync until `record` has succeeded."""
        config = log_config(topic.configs, broker_configs)
        if self._is_durable and not syncs_before_ack(config) and topic.topic_id not in self._topics:
            return replace(config, flush_policy="fsync")
        return config

    async def record(self, topics: Iterable[TopicImage], broker_configs: Mapping[str, str]) -> None:
        """Returns when the data directory records which of the topics acknowledge records before they are synced.

        If the write fails, `config_of` keeps returning the fsync policy. The topic's next change, or a restart,
        retries.
        """
        wanted = self._unrecorded(topics, broker_configs)
        if wanted:
            await asyncio.to_thread(self._add, wanted)

    def record_now(self, topics: Iterable[TopicImage], broker_configs: Mapping[str, str]) -> None:
        """As `record`, but blocking. For the start, when no request waits."""
        topics = list(topics)
        if not self._is_durable:
            return
        wanted = self._unrecorded(topics, broker_configs)
        if self._topics.was_corrupt:
            wanted = [topic.topic_id for topic in topics]  # until everything that exists here has been synced
        if wanted or not self._topics.is_recorded:
            self._add(wanted)

    def _unrecorded(self, topics: Iterable[TopicImage], broker_configs: Mapping[str, str]) -> list[UUID]:
        if not self._is_durable:
            return []
        return [
            topic.topic_id
            for topic in topics
            if topic.topic_id not in self._topics
            and not syncs_before_ack(log_config(topic.configs, broker_configs))
            and any(self._node_id in state.replicas for state in topic.partitions)
        ]

    def _add(self, topic_ids: Iterable[UUID]) -> None:
        try:
            self._topics.add(topic_ids)
        except StorageError as error:
            log.error(
                "flush.policy=replicated not recorded; records are synced before they are acknowledged: %s", error
            )

    async def forget_synced(self) -> None:
        """Removes the topics whose acknowledged records are all synced, and stay so under their current policy.

        Requires that a topic was synced at the previous call, too: it is recorded shortly before its policy takes
        effect.
        """
        listed = self._topics.topic_ids()
        synced = frozenset(one for one in listed if not self._partitions.may_have_acked_unsynced(one))
        # No await before the removal: a policy that changes afterwards finds its topic missing, and records it again.
        removed, self._synced_before = synced & self._synced_before, synced
        if removed:
            self._topics.remove(removed)
            await asyncio.to_thread(self._topics.write)
