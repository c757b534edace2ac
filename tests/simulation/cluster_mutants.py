"""Rules of replication, each broken on purpose: the simulation must notice, or it proves nothing.

A mutant is the rule that is broken, what is put in its place, and the promises whose own checks may notice it first:
that something else breaks down does not count. Those of coordinators are in `coordinator_mutants.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from headrace.broker.controller.replication_control import ReplicationControl
from headrace.broker.replica.partition import Partition
from headrace.broker.replica.replica_manager import ReplicaManager
from headrace.broker.replication.replica_fetcher import ReplicaFetcher
from headrace.core.controller import leader_election, partition_change, replication_control
from headrace.core.image.model import PartitionRegistration
from headrace.core.replica.leader_state import LeaderState
from headrace.storage.epoch.leader_epoch_cache import LeaderEpochFileCache
from headrace.storage.log_truncation import truncate_log
from tests.simulation.cluster_bias import Bias
from tests.simulation.cluster_moves import Moves
from tests.simulation.cluster_promises import (
    BrokenPromise,
    HistoryChanged,
    LeaderIncomplete,
    LogDamaged,
    LoopBlocked,
)

PLAIN = Bias(roles=())


class Mutant(NamedTuple):
    what: str  # the rule that is broken, and what happens then
    target: Any
    name: str
    replacement: Any
    noticed_by: tuple[type[BrokenPromise], ...]
    bias: Bias = PLAIN  # what makes it show sooner
    first_seed: int = 0  # where to begin to look: a hint, which another order of events outdates
    also: tuple[tuple[Any, str, Any], ...] = ()  # the rest of the rule: target, name and replacement


async def _at_once(self: Partition) -> None:
    """Nobody waits for the disk."""


def _cut_at_watermark(original: Callable[..., None]) -> Callable[..., None]:
    def add(self: ReplicaFetcher, partition: Partition) -> None:
        partition.log.recovery_point = min(partition.log.recovery_point, partition.high_watermark)
        self._broker.partitions.checkpoint()
        truncate_log(partition.log, partition.high_watermark, 0)
        partition.on_truncated()
        original(self, partition)

    return add


def _without_those_who_leave(self: LeaderState) -> tuple[int, ...]:
    return self._state.isr if self._pending is None else self._pending.isr


def _without_those_who_join(self: LeaderState) -> tuple[int, ...]:
    return self._state.isr


def _of_the_leader_alone(self: LeaderState, own_end: int, min_isr: int) -> int:
    return own_end


def _whatever_the_isr(original: Callable[..., Any]) -> Callable[..., Any]:
    def watermark(self: LeaderState, own_end: int, min_isr: int) -> Any:
        state = self._state
        self._state = state._replace(elr=())
        try:
            return original(self, own_end, 1)
        finally:
            self._state = state

    return watermark


def _any_replica(original: Callable[..., Any]) -> Callable[..., Any]:
    def succeeded(state: Any, condition: Any, rules: Any) -> Any:
        return original(state, condition, rules._replace(unclean=True))

    return succeeded


async def _cut_first(self: ReplicaManager, partition: Partition, end_offset: int) -> bool:
    truncate_log(partition.log, end_offset, 0)
    partition.on_truncated()
    return True


def _written_and_synced(original: Callable[..., None]) -> Callable[..., None]:
    def write(self: LeaderEpochFileCache, *, sync: bool = True) -> None:
        original(self)

    return write


def _whoever_asks(self: Partition, offset: int, last_fetched_epoch: int) -> None:
    return None


def _as_soon_as_wanted(original: Callable[..., Any]) -> Callable[..., Any]:
    """The newcomers count as in sync."""

    def settled(state: PartitionRegistration) -> PartitionRegistration:
        isr = (*state.isr, *(one for one in state.adding if one not in state.isr))
        return original(state._replace(isr=isr))  # type: ignore[no-any-return]

    return settled


DISKS = Bias(roles=(), flushes_before_ack=True, faults=("_crash_in_a_row", "_slow_disk"))
ISOLATION = Bias(roles=(), flushes_before_ack=True, faults=("_return_and_crash",))
JOINING = Bias(roles=(), min_isr=2, faults=("_join_unheard",))
LOST = (LeaderIncomplete, HistoryChanged)

MUTANTS = [
    Mutant(
        "a follower counts before its disk has the records", Partition, "wait_until_flushed", _at_once, LOST, DISKS, 14
    ),
    Mutant(
        "a follower cuts its log at its own watermark, not by epoch",
        ReplicaFetcher,
        "add",
        _cut_at_watermark(ReplicaFetcher.add),
        LOST,
    ),
    Mutant(
        "a follower's history is not compared with the leader's",
        Partition,
        "divergence",
        _whoever_asks,
        LOST,
        first_seed=9,
    ),
    Mutant(
        "who leaves the ISR does not count any more before that is committed",
        LeaderState,
        "maximal_isr",
        property(_without_those_who_leave),
        LOST,
        first_seed=7,
    ),
    Mutant(
        "who joins the ISR does not count before that is known to be committed",
        LeaderState,
        "maximal_isr",
        property(_without_those_who_join),
        LOST,
        JOINING,
    ),
    Mutant("the leader acknowledges by itself", LeaderState, "watermark", _of_the_leader_alone, LOST),
    Mutant(
        "the watermark moves although too few are in sync (KIP-966)",
        LeaderState,
        "watermark",
        _whatever_the_isr(LeaderState.watermark),
        LOST,
        Bias(roles=(), min_isr=2),
        first_seed=53,
    ),
    Mutant(
        "any replica may lead",
        replication_control,
        "succeeded",
        _any_replica(leader_election.succeeded),
        LOST,
        first_seed=28,
    ),
    Mutant(
        "who restarts uncleanly stays in sync, whatever it has lost (KIP-966)",
        ReplicationControl,
        "acked_unsynced",
        lambda self, topic, recorded: False,
        LOST,
        Bias(roles=(), flushes_before_ack=False, min_isr=2, faults=("_crash_in_a_row",)),
        first_seed=64,
    ),
    Mutant(
        "a log is cut before the checkpoints know", ReplicaManager, "truncate", _cut_first, (LogDamaged,), ISOLATION, 30
    ),
    Mutant(
        "a leader epoch is synced on the event loop",
        LeaderEpochFileCache,
        "_write",
        _written_and_synced(LeaderEpochFileCache._write),
        (LoopBlocked,),
    ),
    Mutant(
        "replicas leave before those that take their place are in sync",
        partition_change,
        "settled",
        _as_soon_as_wanted(partition_change.settled),
        LOST,
        Bias(roles=(Moves,)),
    ),
]


@contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    with ExitStack() as patches:
        for target, name, replacement in ((mutant.target, mutant.name, mutant.replacement), *mutant.also):
            patches.enter_context(patch.object(target, name, replacement))
        yield
