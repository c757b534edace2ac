"""A log on a disk that loses power, fails, fills up or forgets bits (D4, D5, D6, D7, D12, D13)."""

from collections.abc import Callable
from random import Random

import pytest

from headrace.testing import SimFiles
from tests.unit.storage.fault_kit import Promises, lives_on, run_until

Crash = Callable[[SimFiles, int], None]


def killed(files: SimFiles, seed: int) -> None:
    """kill -9: what was handed to the system is there."""


def power_lost(files: SimFiles, seed: int) -> None:
    """Only what was synced is there."""
    files.lose_power()


def power_lost_in_between(files: SimFiles, seed: int) -> None:
    """And by chance some of what was not."""
    files.lose_power(torn=Random(seed))


@pytest.mark.parametrize("crash", [killed, power_lost, power_lost_in_between])
def test_d4_d12_a_crash_before_any_operation_loses_nothing_that_was_acknowledged(crash: Crash) -> None:
    operations, stopped = 0, True
    failures = {}
    while stopped:
        with SimFiles() as files:
            promises = Promises()
            stopped = run_until(files, promises, operations)
            crash(files, operations)
            try:
                lives_on(files, promises, boot=10)
            except Exception as e:
                import traceback
                failures.setdefault(traceback.format_exc(limit=-2), []).append(operations)
        operations += 1
    for f, o in failures.items(): print(len(o), o[:10], f)
    assert not failures
    assert operations > 150, "the whole life was tried"
