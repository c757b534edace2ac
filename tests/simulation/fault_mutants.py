"""Rules for starts, disks, restored metadata, deletion and expiry, each broken on purpose; see `cluster_mutants.py`."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from headrace.broker.controller.controller import Controller
from headrace.broker.controller.metadata_writer import MetadataWriter
from headrace.broker.log.disk_space import DiskSpaceGuard
from headrace.broker.replica.missing_replicas import MissingReplicas
from headrace.broker.replica.partition import Partition
from headrace.broker.replica.partition_directories import PartitionDirectories
from headrace.broker.replica.replica_manager import ReplicaManager
from headrace.broker.scheduler import Scheduler
from headrace.core.controller import cluster_control, leader_election, replication_control, restored_metadata
from headrace.core.controller.partition_change import begun
from headrace.core.replica.leader_state import LeaderState
from headrace.core.transaction.coordinator_shard import TransactionCoordinatorShard
from headrace.records.batch import BatchHeader
from headrace.records.control import EndMarker
from headrace.storage.io.file_system import Bytes, FileSystem
from headrace.storage.log import Log, aborted_txn
from headrace.storage.producer.producer_state_manager import ProducerStateManager
from headrace.storage.segment.log_segment import LogSegment
from tests.simulation import cluster_bias
from tests.simulation.cluster_mutants import LOST, Mutant
from tests.simulation.cluster_promises import (
    DeletedAgain,
    HistoryChanged,
    LatestTooLow,
    LogDamaged,
    LoopBlocked,
    NotServed,
    ReplicasDiffer,
    TopicsMixed,
    TransactionTorn,
    TwoLeaders,
)
from tests.simulation.cluster_transactions import Transactions


async def _count_no_stop(controller: Controller, count_registration: Callable[[int], int]) -> None: ...


def _as_if_loaded(original: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def close(self: ReplicaManager, *, clean: bool = True) -> None:
        self._is_loaded = True
        await original(self, clean=clean)

    return close


def _marker_first(self: Log, segment: LogSegment, batch: Bytes, header: BatchHeader, marker: EndMarker) -> None:
    segment.append(batch, header)
    ended = self.producers.applied_marker(
        header, aborted=not marker.commits, coordinator_epoch=marker.coordinator_epoch
    )
    if ended is not None and ended.aborted:
        segment.aborted.note(aborted_txn(ended))
        self.has_aborted = True


def _by_timestamps(self: Scheduler) -> Iterator[None]:
    oldest_ms = self._broker.clock.wall_ms() - self._broker.settings.integer("producer.id.expiration.ms")
    for partition in self._broker.partitions.all():
        producers = partition.log.producers
        for entry in [*producers.active()]:
            if entry.last_timestamp <= oldest_ms and entry.txn_first_offset is None:
                del producers._entries[entry.producer_id]
        yield


def _by_free_space(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: DiskSpaceGuard, files: FileSystem, path: str) -> None:
        original(self, files, path)
        self.reserve_bytes = min(self.reserve_bytes, files.free_bytes(path) // 10)
        self._is_full = False

    return init


async def _on_the_loop(self: ReplicaManager) -> None:
    if not self.log_dir.is_settled:
        self._settle_forgotten()


def _noting_clean_mark(original: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    async def start(self: Any, *arguments: Any, unclean: bool, **options: Any) -> None:
        self.was_clean = not unclean
        await original(self, *arguments, unclean=unclean, **options)

    return start


def _unless_clean(original: Callable[..., bool]) -> Callable[..., bool]:
    def is_another_disk(self: Any, directory: str) -> bool:
        return not self.was_clean and original(self, directory)

    return is_another_disk


MUTANTS = [
    Mutant(
        "a start that fails before the load marks the directory clean",
        ReplicaManager,
        "close",
        _as_if_loaded(ReplicaManager.close),
        (LogDamaged,),
        cluster_bias.STARTS,
    ),
    Mutant(
        "an abort marker is written before its index entry",
        Log,
        "write_marker",
        _marker_first,
        (TransactionTorn,),
        cluster_bias.DISK_ERRORS._replace(roles=(Transactions,)),
        first_seed=8,
    ),
    Mutant(
        "a replica that lost its whole log may be the last leader",
        leader_election,
        "_with_lost_log",
        lambda state, broker: state,
        LOST,
        cluster_bias.LAST_DISKS,
    ),
    Mutant(
        "a replica without files counts as new",
        MissingReplicas,
        "_had_records",
        lambda self, missing: False,
        LOST,
        cluster_bias.LAST_DIRECTORIES,
        also=((MissingReplicas, "_is_emptied", lambda self, partition: False),),
    ),
    Mutant(
        "a replica is added in the leader epoch in which it was removed",
        replication_control,
        "begun",
        lambda state, wanted: begun(state, wanted)._replace(leader_epoch=state.leader_epoch),
        LOST,
        cluster_bias.RETURNS,
    ),
    Mutant(
        "an older copy of a data directory counts as in sync",
        Controller,
        "_is_older_copy",
        lambda self, registrations: False,
        LOST,
        cluster_bias.OLDER_DISKS,
    ),
    Mutant(
        "a clean stop is not counted",
        Controller,
        "count_stop",
        _count_no_stop,
        LOST,
        cluster_bias.DISKS_OF_THIS_RUN,
    ),
    Mutant(
        "a former disk is trusted for its clean mark",
        Controller,
        "start",
        _noting_clean_mark(Controller.start),
        LOST,
        cluster_bias.FORMER_DISKS,
        also=(
            (Controller, "_is_another_disk", _unless_clean(Controller._is_another_disk)),
            (Controller, "_is_older_copy", lambda self, registrations: False),  # it knows the count of the other disk
        ),
    ),
    Mutant(
        "a leader epoch may be below those of the log",
        Partition,
        "newest_log_epoch",
        property(lambda self: -1),
        (TwoLeaders, *LOST),
        cluster_bias.RESTORED_LOGS,
        first_seed=1,
        also=((Partition, "is_behind_its_log", property(lambda self: False)),),
    ),
    Mutant(
        "an election after a restore may begin an epoch that the log has",
        Partition,
        "_is_reused",
        lambda self, state: False,
        (TwoLeaders, *LOST),
        cluster_bias.RESTORED_LOGS,
        first_seed=3,
    ),
    Mutant(
        "a replica that may have lost records is eligible after a restore",
        restored_metadata,
        "is_doubtful",
        lambda state, broker, has_lost: False,
        LOST,
        cluster_bias.RESTORED_LOGS._replace(min_isr=2, flushes_before_ack=False),
        first_seed=43,
    ),
    Mutant(
        "a producer id that a log knows may be given out after a restore",
        ProducerStateManager,
        "highest_id",
        lambda self, limit: -1,
        LOST,
        cluster_bias.RESTORED_IDS,
        first_seed=1,
        also=((TransactionCoordinatorShard, "highest_producer_id", lambda self: -1),),
    ),
    Mutant(
        "a copy of a broker that runs may register",
        cluster_control,
        "_is_restart",
        lambda known, directory, incarnation: known.directory == directory,
        LOST,
        cluster_bias.CLONES,
        also=(
            (Controller, "is_superseded", property(lambda self: False)),
            (MetadataWriter, "act_as", lambda self, node_id, broker_epoch: None),
        ),
    ),
    Mutant(
        "the disk reserve depends on what is free at the start",
        DiskSpaceGuard,
        "__init__",
        _by_free_space(DiskSpaceGuard.__init__),
        (NotServed,),
        cluster_bias.FULL_DISKS,
        first_seed=1,
    ),
    Mutant(
        "LATEST is told while the high watermark of a new leader lags",
        Partition,
        "watermark_lags",
        property(lambda self: False),
        (LatestTooLow,),
        cluster_bias.ENDS,
        first_seed=1,
    ),
    Mutant(
        "DeleteRecords is acknowledged before the followers have applied it",
        LeaderState,
        "low_watermark",
        lambda self, own_start: own_start,
        (DeletedAgain,),
        cluster_bias.DELETIONS,
        first_seed=14,
    ),
    Mutant(
        "the directory that a failed deletion left is used by the next topic of that name",
        PartitionDirectories,
        "_is_of",
        lambda self, name, topic_id: True,
        (TopicsMixed, DeletedAgain, HistoryChanged),
        cluster_bias.TOPICS,
        first_seed=13,
    ),
    Mutant(
        "the names of deleted partitions are synced on the event loop",
        ReplicaManager,
        "_settle_names",
        _on_the_loop,
        (LoopBlocked,),
        cluster_bias.TOPICS,
    ),
    Mutant(
        "producers expire by the timestamps of their records",
        Scheduler,
        "_forget_silent_producers",
        _by_timestamps,
        (ReplicasDiffer,),
        cluster_bias.EXPIRY,
    ),
]
