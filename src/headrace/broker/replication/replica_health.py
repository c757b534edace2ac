"""Monitors this broker's replicas: offline or corrupt logs, low disk space, and logs newer than the metadata.

Offline replicas: a partition whose files cannot be used is left to other replicas. This broker neither leads it nor
stays in its ISR or ELR.

Corrupt replicas: the same, until the replica has been re-replicated from the first corrupt offset. First a new
leader epoch begins in which this replica is not electable; then its fetcher truncates the log at the corruption and
continues from there. If no other replica has every committed record, the replica stays leader and serves the records
around the corruption.

Disk space: a broker whose disk is full reports it in its session. It leads only where no other replica can: it
rejects records, and serves reads and deletions.

Late replicas: after a restore of the metadata store, a log may have a leader epoch that the metadata does not have,
while the leader has committed records that the log lacks. Only one of the two histories can stay, and neither may be
truncated. The one that clients use stays: the directory of the late replica is renamed to a stray, which is kept for
at least `log.stray.retention.ms`, 7 days by default, for an operator to inspect
(`core/controller/stray_replicas.py`), and the replica is replicated from the leader. A restored store may contain
sessions of brokers that are gone until these expire. Therefore a leader is treated as available when its session
outlasts that time.
"""

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING

from headrace.broker.controller.restored_metadata import late_replicas, raise_leader_epochs
from headrace.broker.replica.partition import Partition
from headrace.core.image.deltas import PartitionsChanged
from headrace.core.image.model import TopicImage
from headrace.model.errors import HeadraceError, StorageError
from headrace.storage.segment.corrupt_ranges import damaged_from

if TYPE_CHECKING:
    from headrace.broker.controller.broker_lifecycle import BrokerLifecycleManager
    from headrace.broker.server import Broker


log = logging.getLogger(__name__)

SESSIONS_WAITED = 2  # a restored session starts again, and its broker may have stopped in the meantime


class LateReplicas:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._wait_s = SESSIONS_WAITED * broker.settings.integer("broker.session.timeout.ms") / 1000
        self._since_s: dict[Partition, float] = {}

    async def look(self) -> None:
        """Sets aside replicas that stay late. Called repeatedly.

        Has no effect without a session, when the metadata may be old.
        """
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


# Short enough that rejected clients find another leader while they still retry.
LOOK_S = 0.5
# Corruption is checked less often: it visits every segment, 3 ms for ten thousand of them.
LOOKS_PER_SEARCH = 4


class ReplicaHealthMonitor:
    def __init__(self, broker: "Broker", session: "BrokerLifecycleManager") -> None:
        self._broker = broker
        self._session = session
        self._task: asyncio.Task[None] | None = None
        self._was_full = False
        self._late = LateReplicas(broker)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="health")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        for number in count():
            await asyncio.sleep(LOOK_S)
            try:
                await self._look_at_copies()
                if number % LOOKS_PER_SEARCH == 0:
                    await self.leave_damaged()
                    await raise_leader_epochs(self._broker)
                    await self._late.look()
                await self.look_at_disk()
            except HeadraceError as error:
                log.warning("Cannot report the state of this broker to the controller: %s", error)
            except Exception:
                log.exception("this broker cannot look after itself")

    async def _look_at_copies(self) -> None:
        if not self._broker.partitions.has_failed:
            return
        failed = {topic.name: self._failed_of(topic) for topic in self._broker.image.topics.values()}
        wanted = {name: indexes for name, indexes in failed.items() if indexes}
        if wanted:
            await self._broker.controller.states.resign(wanted)

    def _failed_of(self, topic: TopicImage) -> list[int]:
        """Returns the partitions that this broker leads or may be elected for although their logs here are offline."""
        me = self._broker.node_id
        return [
            index
            for index, state in enumerate(topic.partitions)
            if state.is_electable(me)
            and isinstance(self._broker.partitions.failure_of(topic.topic_id, index), StorageError)
        ]

    async def leave_damaged(self) -> None:
        """Removes this broker from the ISR and ELR of partitions whose log is corrupt or lost.

        Also called before this broker has a session, so that it is not elected for a log that it does not have.
        """
        lost = self._broker.partitions.lost
        wanted: dict[tuple[bool, bool], dict[str, list[int]]] = {}
        for partition in self._broker.partitions.all():
            if partition.failure is None and self._has_to_go(partition):
                holds_nothing = partition.log_start_offset == partition.log_end_offset
                kind = wanted.setdefault((holds_nothing, lost.is_in_doubt(partition)), {})
                kind.setdefault(partition.topic, []).append(partition.index)
        for (holds_nothing, unless_last), indexes in wanted.items():
            await self._broker.controller.states.resign(
                indexes, to_copy_anew=True, holds_nothing=holds_nothing, unless_last=unless_last
            )
        lost.end_doubts(self._broker.image)

    def _has_to_go(self, partition: Partition) -> bool:
        """Whether a corrupt replica is still in the ISR or ELR, or could be mistaken for an intact one."""
        state = self._broker.image.state_of(partition.topic_id, partition.index)
        if state is None:
            return False  # the image is ahead of the partitions
        damaged = damaged_from(partition.log)
        if damaged is None or len(state.replicas) == 1:
            partition.refetch_from_epoch = None
            return False
        if partition.refetch_from_epoch is None:
            log.error("%s is corrupt from offset %d; re-replicating it from another replica", partition, damaged)
            partition.refetch_from_epoch = partition.leader_epoch + 1
        return partition.counts or partition.leader_epoch < partition.refetch_from_epoch

    async def look_at_disk(self) -> None:
        """Reports a full disk in the session, or its end.

        Also called before the session begins: a broker that starts with a full disk is the last to be elected.
        """
        is_full = self._broker.reserve.is_short(self._was_full)
        if is_full != self._was_full:
            await self._session.say_full(is_full)
            self._was_full = is_full
            if is_full:
                log.warning("Insufficient disk space; this broker gives up leadership where another replica can lead")
            else:
                log.warning("Enough disk space again; this broker can lead partitions")
