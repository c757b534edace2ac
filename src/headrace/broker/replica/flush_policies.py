"""Flush policies of the topics held here: a policy counts only once the data directory says so durably.

`flush.policy=replicated` acknowledges records that are not synced. After a host crash the broker must know which topics
that concerns, whatever their policy is by then (`storage/directory/unflushed_topics.py`).
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
    """Whether a record is acknowledged only once it is synced. Kafka's `flush.messages=1` asks for the same."""
    return config.flush_policy == "fsync" or config.flush_messages <= 1


class FlushPolicies:
    def __init__(self, partitions: "ReplicaManager", log_dir: LogDirectory, node_id: int, *, is_durable: bool) -> None:
        """`is_durable` is false in memory mode, where no record outlives the process."""
        self._partitions = partitions
        self._topics = log_dir.unsynced_topics
        self._node_id = node_id
        self._is_durable = is_durable
        self._synced_before: frozenset[UUID] = frozenset()  # at the last `forget_synced`

    def config_of(self, topic: TopicImage, broker_configs: Mapping[str, str]) -> LogConfig:
        """The topic's configs. Its records are synced before they are acknowledged until `record` has succeeded."""
        config = log_config(topic.configs, broker_configs)
        if self._is_durable and not syncs_before_ack(config) and topic.topic_id not in self._topics:
            return replace(config, flush_policy="fsync")
        return config

    async def record(self, topics: Iterable[TopicImage], broker_configs: Mapping[str, str]) -> None:
        """Returns when the data directory says which of the topics acknowledge records before they are synced.

        If that cannot be written, `config_of` keeps to fsync; the next change of the topic or restart tries again.
        """
        wanted = self._unrecorded(topics, broker_configs)
        if wanted:
            await asyncio.to_thread(self._add, wanted)

    def record_now(self, topics: Iterable[TopicImage], broker_configs: Mapping[str, str]) -> None:
        """As `record`, for the start, when nobody waits."""
        topics = list(topics)
        if not self._is_durable:
            return
        wanted = self._unrecorded(topics, broker_configs)
        if self._topics.was_corrupt:
            wanted = [topic.topic_id for topic in topics]  # until everything that is found here has been synced
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
        """Remove the topics of which every acknowledged record is synced, and stays so under their policy of now.

        Only those that were synced at the last call, too: a topic is recorded shortly before its policy counts.
        """
        listed = self._topics.topic_ids()
        synced = frozenset(one for one in listed if not self._partitions.may_have_acked_unsynced(one))
        # No wait in between: a policy that changes from here on finds its topic missing, and records it again.
        removed, self._synced_before = synced & self._synced_before, synced
        if removed:
            self._topics.remove(removed)
            await asyncio.to_thread(self._topics.write)
