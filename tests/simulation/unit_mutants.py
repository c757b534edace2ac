"""Broken rules that the simulation does not see, each with the deterministic test that notices it.

Why not: the consequence is a delay, or needs a disk that rots, a client that sends out of order, or a single test's
worth of coincidences. `unit_mutant_plugin.py` runs each test with its rule broken.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

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
from headrace.storage.producer import producer_state_loader


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
]
