"""Random runs of one log: transactions, compaction, truncation, expiry and clock jumps under faults, by seed.

HEADRACE_LOG_SEED=4711 pytest tests/simulation/test_log_simulation.py             one seed
HEADRACE_SIMULATION_SEEDS=100000 pytest tests/simulation/test_log_simulation.py   many (`make simulate`)

The storage simulation (`test_storage_simulation.py`) has what this one leaves out: partitions of a broker, failing
syncs, full disks, topics that are created again.
"""

import logging
import os
from pathlib import Path

import pytest

from tests.simulation.log_faults import FaultyLog
from tests.simulation.log_mutants import MUTANTS, LogMutant, broken
from tests.unit.storage.io.small_preallocation import small_rooms

ROOT = Path(__file__).parents[2]
STEPS = 150
SEEDS = int(os.environ.get("HEADRACE_SIMULATION_SEEDS", "500"))
PARTS = 10  # for several workers
RUN_SECONDS_MAX = 24 * 3600  # all seeds run, however slow the machine is
MUTANT_SEEDS = 20  # from the first seed of a mutant on
# Seeds that found a defect.
KEPT = [
    456,  # the name of a producer snapshot was not synced, and the sequences of a producer without records were lost
    1175,  # an entry of an abort marker that a power loss took came back beside a commit marker with its offset
]


def run(seed: int) -> FaultyLog:
    logging.disable()  # pytest keeps logged tracebacks, and with them the files of their frames open
    simulated = FaultyLog(seed)
    try:
        with small_rooms():
            for _ in range(STEPS):
                simulated.step()
            simulated.finish()
    except BaseException as error:
        error.add_note(f"seed {seed}: HEADRACE_LOG_SEED={seed}; {' → '.join(simulated.happened[-25:])}")
        raise
    finally:
        logging.disable(logging.NOTSET)
        simulated.close()
    return simulated


@pytest.mark.skipif("HEADRACE_LOG_SEED" not in os.environ, reason="runs one seed")
def test_log_of_one_seed_agrees_with_its_model() -> None:
    run(int(os.environ["HEADRACE_LOG_SEED"]))


@pytest.mark.skipif("HEADRACE_LOG_SEED" in os.environ, reason="one seed is run")
@pytest.mark.timeout(RUN_SECONDS_MAX)
@pytest.mark.parametrize("part", range(PARTS))
def test_log_agrees_with_its_model(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        run(seed)


@pytest.mark.parametrize("seed", KEPT)
def test_seed_that_found_a_defect_passes(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_seed_is_one_order_of_events(seed: int) -> None:
    first, again = run(seed), run(seed)
    assert first.happened == again.happened
    kinds = [[kind for kind, _ in simulated.files.operations] for simulated in (first, again)]
    assert kinds[0] == kinds[1]


def test_each_kind_of_event_happens() -> None:
    happened = {event.split(" to ")[0].rstrip("0123456789 ") for seed in range(40) for event in run(seed).happened}
    assert happened >= {
        "produce",
        "end_transaction",
        "resend_a_batch",
        "expire_producers",
        "advance_clocks",
        "delete_records",
        "apply_retention",
        "compact",
        "truncated",
        "truncate during compaction",
        "apply_retention during compaction",
        "crash",
        "power loss",
        "power loss during the start",
        "stop_cleanly",
        "fail_an_operation",
        "crash_and_lose_a_file",
    }


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_broken_rule_is_detected(mutant: LogMutant) -> None:
    with broken(mutant):
        for seed in range(mutant.first_seed, mutant.first_seed + MUTANT_SEEDS):
            try:
                run(seed)
            except Exception as error:
                if mutant.detected_as in str(error):
                    return
    pytest.fail(f"not detected in {MUTANT_SEEDS} seeds: {mutant.what}")


def test_documentation_lists_each_broken_rule() -> None:
    page = (ROOT / "docs/guides/testing.md").read_text()
    assert [mutant.what for mutant in MUTANTS if f"| {mutant.what} |" not in page] == []
