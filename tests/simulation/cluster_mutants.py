"""Rules of replication, each broken on purpose: the simulation must notice, or it proves nothing.

A mutant is the rule that is broken, what is put in its place, and the promises whose own checks may notice it first:
that something else breaks down does not count. Those of coordinators are in `coordinator_mutants.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from headrace.broker.partition import Partition
from headrace.broker.partition_states import PartitionStates
from headrace.broker.partitions import Partitions
from headrace.broker.replication.fetcher import Fetcher
from headrace.core.cluster import elections, reassignment, succession
from headrace.core.cluster.values import PartitionState
from headrace.core.replica.leader import Leadership
from headrace.storage.leader_epochs import LeaderEpochs
from headrace.storage.truncation import truncate_log
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
    def add(self: Fetcher, partition: Partition) -> None:
        partition.log.recovery_point = min(partition.log.recovery_point, partition.high_watermark)
        self._broker.partitions.checkpoint()
        truncate_log(partition.log, partition.high_watermark, 0)
        partition.was_cut()
        original(self, partition)

    return add


def _without_those_who_leave(self: Leadership) -> tuple[int, ...]:
    return self._state.isr if self._pending is None else self._pending.isr


def _without_those_who_join(self: Leadership) -> tuple[int, ...]:
    return self._state.isr


def _of_the_leader_alone(self: Leadership, own_end: int, min_isr: int) -> int:
    return own_end


def _whatever_the_isr(original: Callable[..., Any]) -> Callable[..., Any]:
    def watermark(self: Leadership, own_end: int, min_isr: int) -> Any:
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


async def _cut_first(self: Partitions, partition: Partition, end_offset: int) -> bool:
    truncate_log(partition.log, end_offset, 0)
    partition.was_cut()
    return True


def _written_and_synced(original: Callable[..., None]) -> Callable[..., None]:
    def write(self: LeaderEpochs, *, sync: bool = True) -> None:
        original(self)

    return write


def _whoever_asks(self: Partition, offset: int, last_fetched_epoch: int) -> None:
    return None


def _as_soon_as_wanted(original: Callable[..., Any]) -> Callable[..., Any]:
    """The newcomers count as in sync."""

    def settled(state: PartitionState) -> PartitionState:
        isr = (*state.isr, *(one for one in state.adding if one not in state.isr))
        return original(state._replace(isr=isr))  # type: ignore[no-any-return]

    return settled


DISKS = Bias(roles=(), waits_for_disk=True, faults=("_crash_in_a_row", "_slow_disk"))
ISOLATION = Bias(roles=(), waits_for_disk=True, faults=("_return_and_crash",))
JOINING = Bias(roles=(), min_isr=2, faults=("_join_unheard",))
LOST = (LeaderIncomplete, HistoryChanged)

MUTANTS = [
    Mutant("a follower counts before its disk has the records", Partition, "on_disk", _at_once, LOST, DISKS, 14),
    Mutant(
        "a follower cuts its log at its own watermark, not by epoch",
        Fetcher,
        "add",
        _cut_at_watermark(Fetcher.add),
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
        Leadership,
        "holds_back_watermark",
        property(_without_those_who_leave),
        LOST,
        first_seed=7,
    ),
    Mutant(
        "who joins the ISR does not count before that is known to be committed",
        Leadership,
        "holds_back_watermark",
        property(_without_those_who_join),
        LOST,
        JOINING,
    ),
    Mutant("the leader acknowledges by itself", Leadership, "watermark", _of_the_leader_alone, LOST),
    Mutant(
        "the watermark moves although too few are in sync (KIP-966)",
        Leadership,
        "watermark",
        _whatever_the_isr(Leadership.watermark),
        LOST,
        Bias(roles=(), min_isr=2),
        first_seed=53,
    ),
    Mutant("any replica may lead", elections, "succeeded", _any_replica(succession.succeeded), LOST, first_seed=28),
    Mutant(
        "who restarts uncleanly stays in sync, whatever it has lost (KIP-966)",
        PartitionStates,
        "acked_unsynced",
        lambda self, topic, recorded: False,
        LOST,
        Bias(roles=(), waits_for_disk=False, min_isr=2, faults=("_crash_in_a_row",)),
        first_seed=64,
    ),
    Mutant(
        "a log is cut before the checkpoints know", Partitions, "truncate", _cut_first, (LogDamaged,), ISOLATION, 30
    ),
    Mutant(
        "a leader epoch is synced on the event loop",
        LeaderEpochs,
        "_write",
        _written_and_synced(LeaderEpochs._write),
        (LoopBlocked,),
    ),
    Mutant(
        "replicas leave before those that take their place are in sync",
        reassignment,
        "settled",
        _as_soon_as_wanted(reassignment.settled),
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
