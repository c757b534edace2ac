"""Whole clusters under faults, by seed; and the same with a rule broken on purpose, which must be noticed.

HEADRACE_CLUSTER_SEED=4711 pytest tests/simulation/test_cluster_simulation.py      one seed, to look at
HEADRACE_CLUSTER_SEEDS=10000 pytest tests/simulation/test_cluster_simulation.py    many, to hunt (`make simulate`)
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import cluster_bias, cluster_mutants, coordinator_mutants, fault_mutants
from tests.simulation.cluster_bias import Bias
from tests.simulation.cluster_moves import Moves
from tests.simulation.cluster_mutants import JOINING, PLAIN, Mutant, broken
from tests.simulation.cluster_promises import BrokenPromise
from tests.simulation.cluster_transactions import Transactions
from tests.simulation.cluster_world import live
from tests.simulation.coordinator_mutants import IN_TRANSACTIONS

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("HEADRACE_CLUSTER_SEEDS", "500"))
PARTS = 25  # short enough that two workers are done at about the same time; odd, so that each part has every cast
HUNT_SECONDS_MAX = 24 * 3600  # all seeds are lived through, however slow the machine is
MUTANT_SEEDS = 100  # in how many lives a broken rule must show; most do in the first few
MUTANTS = cluster_mutants.MUTANTS + coordinator_mutants.MUTANTS + fault_mutants.MUTANTS
# Lives of each kind in which particular faults happen, for 40 in which chance chooses.
FAULT_SEEDS = max(SEEDS // 40, 1)
SLOWLY_MOVING = Bias(roles=(Transactions, Moves), faults=("_lossy_network", "_slow_disk"))
# Seeds that once found a mistake of ours.
KEPT = [
    *((seed, PLAIN) for seed in (3, 16, 24, 125, 221, 472)),
    (19, IN_TRANSACTIONS),  # a coordinator whose clock was behind let transactions stay open
    (1455, Bias()),  # a coordinator that was replaced and did not know it told old offsets
    (2463, Bias()),  # an index of aborted transactions was written again, lost again, and taken for whole
    (2889, Bias()),  # those who were only killed were taken for having lost what the one without power had lost
    (103, Bias()),  # the snapshot of a clean stop outlived its log, and hid an aborted transaction of the next one
    (254, SLOWLY_MOVING),  # a marker got lost with the replica that moved away
    *((seed, cluster_bias.RESTORED_LOGS) for seed in (3, 10, 17)),  # an epoch from before a restore began again
    (20, cluster_bias.RESTORED_OFTEN),  # two histories of one leader epoch, whose followers could not be copied
    (75, cluster_bias.RESTORED._replace(roles=())),  # a replica that had lost records was the only eligible one
    *((seed, cluster_bias.RESTORED_IDS) for seed in (1, 23, 56)),  # producer ids were given out again
    # an older copy was looked for in metadata that was older still
    *((seed, cluster_bias.OLDER_DISKS) for seed in (910031, 910072, 910090, 910106)),
    (0, JOINING),  # none of ours yet: where the maximal ISR is what counts
]


@pytest.mark.skipif("HEADRACE_CLUSTER_SEED" not in os.environ, reason="for looking at one seed")
def test_this_cluster_keeps_its_promises() -> None:
    """HEADRACE_CLUSTER_FAULTS names one of `cluster_bias.FAULTS`; without it, chance chooses among the usual ones."""
    name = os.environ.get("HEADRACE_CLUSTER_FAULTS")
    live(int(os.environ["HEADRACE_CLUSTER_SEED"]), Bias() if name is None else cluster_bias.FAULTS[name])


@pytest.mark.skipif("HEADRACE_CLUSTER_SEED" in os.environ, reason="one seed is looked at")
@pytest.mark.timeout(HUNT_SECONDS_MAX)
@pytest.mark.parametrize("part", range(PARTS))
def test_any_cluster_keeps_its_promises(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        live(seed)


@pytest.mark.skipif("HEADRACE_CLUSTER_SEED" in os.environ, reason="one seed is looked at")
@pytest.mark.timeout(HUNT_SECONDS_MAX)
@pytest.mark.parametrize("name", cluster_bias.FAULTS)
def test_cluster_under_particular_faults_keeps_its_promises(name: str) -> None:
    for seed in range(FAULT_SEEDS):
        live(seed, cluster_bias.FAULTS[name])


@pytest.mark.parametrize(("seed", "bias"), KEPT)
def test_what_was_wrong_once_stays_right(seed: int, bias: Bias) -> None:
    live(seed, bias)


def test_one_seed_is_one_order_of_events() -> None:
    assert live(7).trace == live(7).trace


def test_one_seed_is_one_order_of_events_in_every_process() -> None:
    """A seed that was found elsewhere can be looked at here: nothing hangs on the order of a set."""
    program = "from tests.simulation.cluster_world import live; print(live(7).trace)"
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    with broken(mutant):
        for seed in range(mutant.first_seed, mutant.first_seed + MUTANT_SEEDS):
            try:
                live(seed, mutant.bias)
            except BrokenPromise as error:
                if isinstance(error, mutant.noticed_by):
                    return
            except Exception:
                continue  # something else broke down first: that proves nothing
    pytest.fail(f"{MUTANT_SEEDS} lives, and no check of {mutant.noticed_by} has noticed: {mutant.what}")


def test_the_documentation_lists_every_rule_that_is_broken() -> None:
    page = (ROOT / "docs/guides/testing.md").read_text()
    assert [mutant.what for mutant in MUTANTS if f"| {mutant.what} |" not in page] == []
