"""Whole clusters under faults, by seed; and the same with a rule broken on purpose, which must be noticed.

HEADRACE_CLUSTER_SEED=4711 pytest tests/simulation/test_cluster_simulation.py      one seed, to look at
HEADRACE_CLUSTER_SEEDS=10000 pytest tests/simulation/test_cluster_simulation.py    many, to hunt (`make simulate`)
"""

import os
import time

import pytest

from tests.simulation.cluster_mutants import MUTANTS, Mutant, broken
from tests.simulation.cluster_world import live

SEEDS = int(os.environ.get("HEADRACE_CLUSTER_SEEDS", "500"))
PARTS = 10  # so that several workers share them
# For slow machines, of each part: what does not fit is left to `make simulate`. Not for hunts.
SECONDS_MAX = 15 if "HEADRACE_CLUSTER_SEEDS" not in os.environ else 10**9
HUNT_SECONDS_MAX = 24 * 3600  # a thousand seeds take minutes, on a busy machine many
MUTANT_SEEDS = 100  # in how many lives a broken rule must show; most do in the first few
# Seeds that once found a mistake of ours.
KEPT = (3, 16, 24, 125, 221, 472)


@pytest.mark.skipif("HEADRACE_CLUSTER_SEED" not in os.environ, reason="for looking at one seed")
def test_this_cluster_keeps_its_promises() -> None:
    live(int(os.environ["HEADRACE_CLUSTER_SEED"]))


@pytest.mark.skipif("HEADRACE_CLUSTER_SEED" in os.environ, reason="one seed is looked at")
@pytest.mark.timeout(HUNT_SECONDS_MAX)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_cluster_keeps_its_promises(part: int) -> None:
    end = time.monotonic() + SECONDS_MAX
    lived = 0
    for seed in range(part, SEEDS, PARTS):
        live(seed)
        lived += 1
        if time.monotonic() > end:
            break
    assert lived >= min(SEEDS // PARTS, 5), "the machine is too slow for this to mean anything"


@pytest.mark.parametrize("seed", KEPT)
def test_what_was_wrong_once_stays_right(seed: int) -> None:
    live(seed)


def test_one_seed_is_one_order_of_events() -> None:
    assert live(7).trace == live(7).trace


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    with broken(mutant):
        for seed in range(mutant.first_seed, mutant.first_seed + MUTANT_SEEDS):
            try:
                live(seed, mutant.bias)
            except Exception:
                return
    pytest.fail(f"{MUTANT_SEEDS} lives without a trace of: {mutant.what}")
