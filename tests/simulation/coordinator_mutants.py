"""Rules of coordinators, each broken on purpose: the simulation of transactions and groups must notice."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from headrace.broker.coordinator import group_coordinator, transaction_runtime
from headrace.broker.coordinator.add_partitions_manager import AddPartitionsToTxnManager
from headrace.broker.coordinator.context import CoordinatorContext
from headrace.broker.coordinator.loader import CoordinatorLoader
from headrace.broker.coordinator.runtime import CoordinatorRuntime
from headrace.broker.coordinator.transaction_marker_manager import Outcome
from headrace.broker.coordinator.transaction_runtime import TransactionRuntime
from headrace.broker.replica.local_replica import LocalReplica
from headrace.broker.replica.partition import Partition
from headrace.core.coordinator import CoordinatorTime, Decision, Timer
from headrace.core.group.coordinator_shard import GroupCoordinatorShard
from headrace.core.transaction.coordinator_shard import TransactionCoordinatorShard
from headrace.core.transaction.metadata import TransactionMetadata
from headrace.model.errors import HeadraceError
from headrace.model.ids import TopicPartition
from tests.simulation.cluster_bias import Bias
from tests.simulation.cluster_groups import Groups
from tests.simulation.cluster_mutants import Mutant
from tests.simulation.cluster_promises import OffsetLost, TransactionOpen, TransactionTorn
from tests.simulation.cluster_transactions import Transactions


def _answered_at_once(original: Callable[..., None]) -> Callable[..., None]:
    def carry_out(self: CoordinatorRuntime[Any], shard: CoordinatorContext[Any], decision: Decision[Any]) -> None:
        original(self, shard, replace(decision, answers=()))
        self._answer(decision.answers)

    return carry_out


async def _not_read(self: CoordinatorLoader) -> None:
    """The machine begins with nothing."""


async def _at_once(partition: Partition, offset: int) -> None:
    """Whatever was written counts as committed."""


async def _believed(partition: Partition, may_be_fenced: Callable[[], bool]) -> bool:
    return True


def _to_the_first_only(original: Callable[..., Any]) -> Callable[..., Any]:
    async def bring(self: TransactionRuntime, shard: Any, place: TopicPartition, outcome: Outcome) -> None:
        if place.partition == 0:
            await original(self, shard, place, outcome)

    return bring


async def _tried_once(self: TransactionRuntime, shard: Any, place: TopicPartition, outcome: Outcome) -> None:
    with suppress(HeadraceError):
        await self.markers.write(place, outcome)


def _up_to_the_watermark(self: LocalReplica) -> int:
    return self.high_watermark


def _by_whichever_clock(original: Callable[..., Timer]) -> Callable[..., Timer]:
    def timeout(transaction: TransactionMetadata, now: CoordinatorTime) -> Timer:
        return original(transaction, now)._replace(due_ms=now + max(transaction.deadline_ms - now.wall_ms, 0))

    return timeout


def _as_committed(original: Callable[..., None]) -> Callable[..., None]:
    def ended(self: GroupCoordinatorShard, producer_id: int, *, committed: bool) -> None:
        original(self, producer_id, committed=True)

    return ended


IN_TRANSACTIONS = Bias(roles=(Transactions,))
IN_GROUPS = Bias(roles=(Groups,))

MUTANTS = [
    Mutant(
        "a commit of offsets is acknowledged before it is replicated",
        CoordinatorRuntime,
        "carry_out",
        _answered_at_once(CoordinatorRuntime.carry_out),
        (OffsetLost,),
        IN_GROUPS,
    ),
    Mutant(
        "a new group coordinator does not read its log", CoordinatorLoader, "run", _not_read, (OffsetLost,), IN_GROUPS
    ),
    Mutant(
        "a commit is taken from a member that was replaced",
        GroupCoordinatorShard,
        "_check_commit",
        lambda self, group_id, committer, now: (),
        (OffsetLost,),
        IN_GROUPS,
        first_seed=13,
    ),
    Mutant(
        "a coordinator that may have been replaced tells offsets without asking its followers",
        group_coordinator,
        "confirm_leadership",
        _believed,
        (OffsetLost,),
        Bias(roles=(Groups,), faults=("_isolate",)),
        first_seed=139,
    ),
    Mutant(
        "a new transaction coordinator does not read its log",
        CoordinatorLoader,
        "run",
        _not_read,
        (TransactionOpen, TransactionTorn),
        IN_TRANSACTIONS,
    ),
    Mutant(
        "markers go out before the decision is replicated",
        transaction_runtime,
        "committed",
        _at_once,
        (TransactionTorn,),
        IN_TRANSACTIONS,
        first_seed=75,
    ),
    Mutant(
        "the end of a transaction is acknowledged before it is replicated",
        TransactionRuntime,
        "carry_out",
        _answered_at_once(TransactionRuntime.carry_out),
        (TransactionTorn,),
        IN_TRANSACTIONS,
        first_seed=4,
    ),
    Mutant(
        "the outcome is told to the first partition only",
        TransactionRuntime,
        "_bring_marker",
        _to_the_first_only(TransactionRuntime._bring_marker),
        (TransactionOpen, TransactionTorn),
        IN_TRANSACTIONS,
    ),
    Mutant(
        "a marker that is not taken is not brought again",
        TransactionRuntime,
        "_bring_marker",
        _tried_once,
        (TransactionOpen, TransactionTorn),
        IN_TRANSACTIONS,
        first_seed=5,
    ),
    Mutant(
        "a late write is not held against its transaction (KIP-890)",
        AddPartitionsToTxnManager,
        "check",
        lambda self, *arguments: None,
        (TransactionOpen, TransactionTorn),
        IN_TRANSACTIONS,
        first_seed=7,
    ),
    Mutant(
        "readers with read_committed are shown what is undecided",
        LocalReplica,
        "last_stable_offset",
        property(_up_to_the_watermark),
        (TransactionTorn,),
        IN_TRANSACTIONS,
    ),
    Mutant(
        "offsets of an aborted transaction count",
        GroupCoordinatorShard,
        "transaction_ended",
        _as_committed(GroupCoordinatorShard.transaction_ended),
        (TransactionTorn,),
        Bias(roles=(Transactions, Groups)),
    ),
    Mutant(
        "a timeout is measured with another broker's clock",
        TransactionCoordinatorShard,
        "_timeout",
        staticmethod(_by_whichever_clock(TransactionCoordinatorShard._timeout)),
        (TransactionOpen,),
        IN_TRANSACTIONS,
        first_seed=30,
    ),
]
