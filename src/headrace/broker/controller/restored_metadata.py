"""Commits higher leader epochs and producer ids where logs are newer than the metadata, as after a restore.

The rules are in `core/controller/restored_metadata.py`.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace.core.controller.replication_control import condition_of
from headrace.core.controller.restored_metadata import PRODUCER_ID_MAX, is_doubtful, is_late, is_unclaimed
from headrace.core.image.model import NO_LEADER, PartitionRegistration, TopicImage
from headrace.metadata.store import Conflict, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from headrace.broker.replica.partition import Partition
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

RETRY_S = 0.2  # as for the session: the metadata store is available again after an election


async def raise_leader_epochs(broker: "Broker") -> None:
    """Returns when no log of this broker has a leader epoch above the metadata's.

    Retries while the metadata store is unavailable. Late replicas are left unchanged: they neither lead nor follow.
    """
    is_alone = broker.membership is None
    while wanted := _behind_their_logs(broker):
        count = sum(map(len, wanted.values()))
        log.warning("Metadata is older than the logs of %d partitions; raising their leader epochs", count)
        raising = broker.controller.states.raise_leader_epochs(
            wanted, alone=is_alone, has_lost=lambda topic: _has_lost(broker, topic)
        )
        await _committed(broker, raising)


def _behind_their_logs(broker: "Broker") -> dict[str, dict[int, int]]:
    wanted: dict[str, dict[int, int]] = {}
    for partition in broker.partitions.all():
        state = broker.image.state_of(partition.topic_id, partition.index)  # None: the image is ahead of the partitions
        if partition.failure is None and state is not None and _is_to_be_raised(broker, partition, state):
            wanted.setdefault(partition.topic, {})[partition.index] = partition.newest_log_epoch
    return wanted


def late_replicas(broker: "Broker") -> list["Partition"]:
    """Returns partitions whose log is newer than the metadata, while a live leader may have committed more records."""
    condition = condition_of(broker.image)
    return [
        partition
        for partition in broker.partitions.all()
        if partition.failure is None
        and partition.is_behind_its_log
        and (state := broker.image.state_of(partition.topic_id, partition.index)) is not None
        and is_late(state, broker.node_id, condition)
    ]


def _is_to_be_raised(broker: "Broker", partition: "Partition", state: PartitionRegistration) -> bool:
    if state.leader == NO_LEADER and is_unclaimed(state, partition.newest_log_epoch):
        return broker.node_id not in state.lost
    if not partition.is_behind_its_log or is_late(state, broker.node_id, condition_of(broker.image)):
        return False
    is_above = partition.leader_epoch < partition.newest_log_epoch
    topic = broker.image.topics[partition.topic]
    return is_above or not is_doubtful(state, broker.node_id, has_lost=_has_lost(broker, topic))


def _has_lost(broker: "Broker", topic: TopicImage) -> bool:
    """Whether acknowledged records may be lost since the last stop; see `ReplicationControl.handle_unclean_restart`."""
    keeps_all = broker.log_dir.was_clean or broker.log_dir.same_boot_as_last_run
    recorded = broker.log_dir.acked_unsynced_before(topic.topic_id)
    return not keeps_all and broker.controller.states.acked_unsynced(topic, recorded)


async def raise_producer_ids(broker: "Broker") -> None:
    """Returns when no producer id in a log of this broker can be allocated again."""
    used = max((one.log.producers.highest_id(PRODUCER_ID_MAX) for one in broker.partitions.all()), default=-1)
    while used >= broker.image.next_producer_id:
        log.warning("Metadata is older than the producer id %d in a log; raising the next producer id", used)
        await _committed(broker, broker.controller.raise_producer_ids(used))


async def _committed(broker: "Broker", commit: Awaitable[None]) -> None:
    """Awaits a commit. In a cluster, a failure is logged, and the caller's loop retries."""
    try:
        await commit
    except (Conflict, Unavailable, OutcomeUnknown) as error:
        if broker.membership is None:
            raise
        log.warning("Restored metadata could not be raised; retrying in %.1f s: %s", RETRY_S, error)
        await asyncio.sleep(RETRY_S)
        await broker.controller.catch_up()
