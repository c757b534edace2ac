"""Rules of recovery, compaction and truncation, each broken on purpose: the simulated log has to detect it.

A mutant is the rule that is broken, what is put in its place, and the message of the check that detects it. Those that
the simulation cannot see are in `unit_mutants.py`.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from headrace.storage.cleaner.cleaner import Cleaner
from headrace.storage.directory import log_directory
from headrace.storage.log_loader import Checkpoint
from headrace.storage.producer.producer_snapshot_file import UnsyncedSnapshot


class LogMutant(NamedTuple):
    what: str  # the rule that is broken, and what happens then
    patches: tuple[tuple[Any, str, Any], ...]
    detected_as: str  # a part of the message of the check, or of the error, that detects it
    first_seed: int = 0  # where to begin: a hint, which another order of events outdates


def _nothing(*_: object, **__: object) -> None:
    """The rule is left out."""


def _of_kafka(**fields: Any) -> Checkpoint:
    return Checkpoint(**(fields | {"is_kafkas": True}))


def _also_those_that_have_left(self: Cleaner, first_offset: int, upper_bound: int) -> Any:
    aborted: list[Any] = []
    for segment in list(self._log.segments):
        if segment.next_offset <= first_offset:
            continue
        found, complete = segment.aborted.between(first_offset, upper_bound)
        aborted += found
        if complete:
            break
        yield None
    return aborted


MUTANTS = [
    LogMutant(
        "a gap that a power loss left in a compacted log is taken for one of compaction",
        ((log_directory, "Checkpoint", _of_kafka),),
        "the last record of key",
        first_seed=55,
    ),
    LogMutant(
        "compaction reads the index of a segment that retention has set aside",
        ((Cleaner, "_aborted_between", _also_those_that_have_left),),
        "has 0 entries; 1 were written",
        first_seed=65,
    ),
    LogMutant(
        "producer snapshots are never synced",
        ((UnsyncedSnapshot, "sync", _nothing),),
        "where 0 comes next",
        first_seed=185,
    ),
]


@contextmanager
def broken(mutant: LogMutant) -> Iterator[None]:
    with ExitStack() as patches:
        for target, name, replacement in mutant.patches:
            patches.enter_context(patch.object(target, name, replacement))
        yield
