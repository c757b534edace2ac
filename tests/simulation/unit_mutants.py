"""Broken rules that the simulation does not see, each with the deterministic test that notices it.

Why not: the consequence is a delay, or needs a disk that rots, a client that sends out of order, or a single test's
worth of coincidences. `unit_mutant_plugin.py` runs each test with its rule broken.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest.mock import ANY

from headrace.broker.coordinator import add_partitions_manager, transaction_marker_manager
from headrace.broker.coordinator.context import Timers
from headrace.broker.coordinator.internal_topic import InternalTopicManager
from headrace.broker.coordinator.runtime import CoordinatorRuntime
from headrace.broker.handlers.group import offset_commit, offset_commit_fast_path
from headrace.broker.replica import purgatory, sent_records
from headrace.broker.replica.purgatory import PartitionWatchers
from headrace.broker.replication import follower_log
from headrace.core.controller import replication_control, restored_metadata
from headrace.storage import log_loader, log_truncation
from headrace.storage.cleaner import cleaner
from headrace.storage.cleaner.cleaner import Cleaner
from headrace.storage.epoch import leader_epoch_recovery
from headrace.storage.epoch.leader_epoch_cache import FILE_NAME as EPOCHS_FILE
from headrace.storage.epoch.leader_epoch_cache import LeaderEpochFileCache
from headrace.storage.log_loader import Checkpoint
from headrace.storage.producer import producer_snapshot_file, producer_state_loader
from headrace.storage.segment import segment_replacement
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_replacement import swap_in


class UnitMutant(NamedTuple):
    what: str
    patches: tuple[tuple[Any, str, Any], ...]
    test: str  # without its parameters: one of them is enough


def _nothing(*_: object, **__: object) -> None:
    """The rule is left out."""


def _in_one_batch(self: CoordinatorRuntime[Any], shard: Any, decision: Any) -> None:
    self._write_facts(shard, decision.facts, decision.producer)


def _must_open(self: InternalTopicManager, index: int, leader_epoch: int) -> None:
    partition = self._broker.partitions.get(self.name, index)
    self._led[index] = leader_epoch
    self._runtime.lead(partition)


def _handed_over(original: Callable[..., Any]) -> Callable[..., Any]:
    def handle_unclean_restart(
        names: Any, image: Any, node_id: int, condition: Any, rules: Any, has_lost: Any, **flags: Any
    ) -> Any:
        return original(names, image, node_id, condition, rules, lambda topic: True, **flags)

    return handle_unclean_restart


def _remembered(original: Callable[..., str]) -> Callable[..., str]:
    names: dict[Any, str] = {}

    def checked_topic(topic: Any, index: int, call: Any) -> str:
        if topic not in names:
            names[topic] = original(topic, index, call)
        return names[topic]

    return checked_topic


def _from_checked_segments(epochs: LeaderEpochFileCache, segments: Sequence[LogSegment], unsynced_from: int) -> None:
    for epoch, start in list(leader_epoch_recovery._from_batches([one for one in segments if one.checked])):
        if epoch > epochs.latest and start >= unsynced_from:
            for durable in epochs.assign(epoch, start):
                durable.sync()


def _without_epochs_file(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def names_of(files: Any, directory: str, checkpoint: Checkpoint) -> list[Any]:
        names = original(files, directory, checkpoint)
        return [one for one in names if not getattr(one, "_path", "").endswith(EPOCHS_FILE)]

    return names_of


def _whatever_was_truncated(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda log, new, old, truncations: original(log, new, old, ANY)


def _all_of_them(files: Any, directory: str, bases: list[int], log_start: int) -> list[int]:
    return bases


class _Unsynced:
    """The name of a file that is left out of a sync."""

    def __init__(self, *_: object) -> None: ...

    sync = _nothing


BROKER = "tests/unit/broker"
STORAGE = "tests/unit/storage"

UNIT_MUTANTS = [
    UnitMutant(
        "a coordinator's timer that fails is not due again",
        ((Timers, "_retry", _nothing),),
        f"{BROKER}/coordinator/test_append_failures.py::test_failed_timer_runs_again_after_appends_recover",
    ),
    UnitMutant(
        "the tombstones of one decision are one batch",
        ((CoordinatorRuntime, "_write_down", _in_one_batch),),
        f"{BROKER}/coordinator/test_append_failures.py::test_tombstones_larger_than_a_batch_are_all_written",
    ),
    UnitMutant(
        "the markers for a slow partition hold up those for others",
        ((transaction_marker_manager, "IN_FLIGHT_MAX", 1),),
        f"{BROKER}/coordinator/test_transaction_marker_manager.py::test_slow_partition_does_not_delay_others",
    ),
    UnitMutant(
        "a coordinator partition that cannot be opened ends the start",
        ((InternalTopicManager, "_lead", _must_open),),
        f"{BROKER}/coordinator/test_partition_count.py::test_start_succeeds_with_unopened_partition",
    ),
    UnitMutant(
        "a restarted leader hands over to peers with old sessions",
        ((replication_control, "handle_unclean_restart", _handed_over(replication_control.handle_unclean_restart)),),
        "tests/unit/core/controller/test_cluster_control.py::test_restarted_leader_is_not_replaced_by_peers_with_old_sessions",
    ),
    UnitMutant(
        "who waits for the sync of truncated records waits on",
        ((PartitionWatchers, "cut_syncs", _nothing),),
        f"{BROKER}/replica/test_purgatory.py::test_sync_waiter_beyond_truncated_end_is_released",
    ),
    UnitMutant(
        "a waiter that raises stops the others",
        ((purgatory, "_call", lambda notify: notify()),),
        f"{BROKER}/replica/test_purgatory.py::test_waiter_that_raises_does_not_stop_the_others",
    ),
    UnitMutant(
        "producer snapshots outlive a log that is started over",
        ((log_truncation, "remove_snapshots", _nothing), (log_loader, "remove_snapshots", _nothing)),
        f"{STORAGE}/test_log_transactions.py::test_snapshot_of_removed_records_is_not_used",
    ),
    UnitMutant(
        "an abort whose marker is corrupt is forgotten",
        ((producer_state_loader._Replay, "_restore_before", _nothing),),
        f"{STORAGE}/producer/test_corrupt_markers.py::test_flipped_bit_in_marker_changes_no_decision",
    ),
    UnitMutant(
        "a gap or a new leader epoch is copied at first sight",
        ((follower_log.Expected, "check", _nothing),),
        f"{BROKER}/replica/test_sent_records.py::test_flipped_bit_in_a_header_stops_at_the_leader",
    ),
    UnitMutant(
        "a leader trusts the bytes that it wrote itself",
        ((sent_records, "read_again", lambda log, offset, size, _: log.read(offset, size, log.log_end_offset)),),
        f"{BROKER}/replica/test_sent_records.py::test_rejected_batches_are_checked_and_sent_again",
    ),
    UnitMutant(
        "a newer log replaces a live leader",
        ((restored_metadata, "is_late", lambda state, broker, condition: False),),
        f"{BROKER}/replication/test_late_replicas.py::test_live_leader_that_commits_without_the_replica_stays",
    ),
    UnitMutant(
        "the first batch of a transaction may have any sequence",
        ((add_partitions_manager, "_check_first_sequence", _nothing),),
        f"{BROKER}/handlers/transaction/test_transactions.py::test_first_batch_of_transaction_must_have_sequence_0",
    ),
    UnitMutant(
        "the fast path of commits remembers the name behind a topic id",
        ((offset_commit_fast_path, "checked_topic", _remembered(offset_commit.checked_topic)),),
        "tests/integration/test_repeated_requests.py::test_commit_for_a_deleted_topic_id_is_rejected",
    ),
    UnitMutant(
        "the epochs of unsynced batches are read from checked segments only",
        ((leader_epoch_recovery, "_add_unsynced", _from_checked_segments),),
        f"{STORAGE}/epoch/test_unsynced_epochs.py::test_d4_batch_of_an_unsynced_epoch_behind_a_trusted_segment_is_readable",
    ),
    UnitMutant(
        "a start after a process crash does not sync the leader epochs",
        ((log_loader, "_names_of", _without_epochs_file(log_loader._names_of)),),
        f"{STORAGE}/epoch/test_unsynced_epochs.py::test_d4_start_after_a_process_crash_syncs_leader_epochs",
    ),
    UnitMutant(
        "compaction replaces a segment that was truncated meanwhile",
        ((cleaner, "swap_in", _whatever_was_truncated(swap_in)),),
        f"{STORAGE}/cleaner/test_cleaner.py::test_truncation_at_any_step_ends_the_round",
    ),
    UnitMutant(
        "compaction leaves the producer snapshots that it outdates",
        ((Cleaner, "_remove_outdated_snapshots", _nothing),),
        f"{STORAGE}/cleaner/test_compacted_recovery.py::test_transaction_whose_marker_is_compacted_does_not_open_again",
    ),
    UnitMutant(
        "a start does not write lost producer snapshots again",
        ((producer_state_loader, "_write_snapshot_behind", _nothing),),
        f"{STORAGE}/producer/test_snapshot_losses.py::test_start_writes_lost_snapshots_again",
    ),
    UnitMutant(
        "a start writes a producer snapshot for each segment",
        ((producer_state_loader, "SNAPSHOTS_WRITTEN", 1000),),
        f"{STORAGE}/producer/test_snapshot_losses.py::test_start_writes_few_snapshots",
    ),
    UnitMutant(
        "the copy of a removed segment is left to the next start",
        ((segment_replacement, "SWAP_SUFFIXES", ()),),
        f"{STORAGE}/cleaner/test_compacted_recovery.py::test_retention_and_a_power_loss_at_any_step_of_compaction_lose_no_record",
    ),
    UnitMutant(
        "a segment that could not be removed counts as part of the log",
        ((log_loader, "_without_deleted", _all_of_them),),
        f"{STORAGE}/cleaner/test_compacted_recovery.py::test_segment_that_could_not_be_removed_is_not_taken_for_the_end_of_the_log",
    ),
    UnitMutant(
        "the name of a producer snapshot that waited for an index is not synced",
        ((producer_snapshot_file, "NewName", _Unsynced),),
        f"{STORAGE}/producer/test_snapshot_losses.py::test_name_of_a_snapshot_is_durable_with_the_next_syncs",
    ),
]
