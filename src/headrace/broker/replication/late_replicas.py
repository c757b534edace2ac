"""Replicas that come back after others have served without them, on metadata restored from an older snapshot.

Such a log has a leader epoch that the metadata does not know, and the leader has committed records that the log lacks.
One of the two histories must not count any more, and neither may be truncated. The one that clients use stays: the
directory of the returning replica is renamed to a stray, which is not removed before an operator has had a week to look
at it (`core/cluster/strays.py`), and the replica is copied from the leader.

A restored store may show sessions of brokers that are gone, until these expire. So a leader is believed to be there
when its session outlasts that time.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.restored_metadata import late_replicas
from headrace.core.cluster.events import PartitionsChanged

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.partition import Partition

log = logging.getLogger(__name__)

SESSIONS_WAITED = 2  # a session that the store restores begins again, and its broker may have ended since


class LateReplicas:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._wait_s = SESSIONS_WAITED * broker.settings.integer("broker.session.timeout.ms") / 1000
        self._since_s: dict[Partition, float] = {}

    async def look(self) -> None:
        """Called again and again while this broker has a session: without one, its metadata may be old."""
        now_s = asyncio.get_running_loop().time()
        membership = self._broker.membership
        is_informed = membership is not None and not membership.may_be_fenced
        late = late_replicas(self._broker) if is_informed else []
        known, self._since_s = self._since_s, {}
        topics: set[str] = set()
        for partition in late:
            self._since_s[partition] = known.get(partition, now_s)
            if partition not in known:
                self._report(partition)
            elif now_s - known[partition] >= self._wait_s:
                log.critical("%s: keeping its directory as a stray; replicating it from the leader", partition)
                self._broker.partitions.set_aside(partition)
                topics.add(partition.topic)
        images = [self._broker.image.topics[name] for name in sorted(topics) if name in self._broker.image.topics]
        if images:
            await self._broker.controller.deliver_again([PartitionsChanged(topic, ()) for topic in images])

    def _report(self, partition: "Partition") -> None:
        state = self._broker.image.state_of(partition.topic_id, partition.index)
        assert state is not None, "late replicas have a state"
        log.critical(
            "%s: the log here has leader epoch %d and ends at offset %d; broker %d leads in epoch %d and may have"
            " committed records without it. The metadata is older than this log",
            partition,
            partition.newest_log_epoch,
            partition.log_end_offset,
            state.leader,
            state.leader_epoch,
        )
