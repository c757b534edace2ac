"""Random lives of a data directory, by seed: nothing acknowledged is lost, nothing is made up, it always starts again.

HEADRACE_SIMULATION_SEED=4711 pytest tests/simulation        one seed, to look at
HEADRACE_SIMULATION_SEEDS=100000 pytest tests/simulation     many, to hunt
"""

import os
import time

import pytest

from tests.simulation.storage_world import World
from tests.unit.storage.small_room import small_rooms

STEPS = 120
SEEDS = int(os.environ.get("HEADRACE_SIMULATION_SEEDS", "200"))
# For slow machines: what does not fit is left to the next run by hand. Not for hunts.
SECONDS_MAX = 20 if "HEADRACE_SIMULATION_SEEDS" not in os.environ else 10**9


def live(seed: int) -> World:
    world = World(seed)
    try:
        with small_rooms():
            for _ in range(STEPS):
                world.step()
            world.finish()
    except BaseException as error:
        error.add_note(f"seed {seed}: HEADRACE_SIMULATION_SEED={seed}; {' → '.join(world.happened[-12:])}")
        raise
    finally:
        world.close()
    return world


def test_any_life_keeps_its_promises() -> None:
    if "HEADRACE_SIMULATION_SEED" in os.environ:
        live(int(os.environ["HEADRACE_SIMULATION_SEED"]))
        return
    end = time.monotonic() + SECONDS_MAX
    lived = 0
    for seed in range(SEEDS):
        live(seed)
        lived += 1
        if time.monotonic() > end:
            break
    assert lived >= min(SEEDS, 20), "the machine is too slow for this to mean anything"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_seed_is_one_order_of_events(seed: int) -> None:
    first, again = live(seed), live(seed)
    assert first.happened == again.happened
    kinds = [[kind for kind, _ in world.files.operations] for world in (first, again)]
    assert kinds[0] == kinds[1], "up to the names of folders that are set aside"


def test_the_lives_are_eventful() -> None:
    """Else all of this proves nothing."""
    happened = {what for seed in range(20) for what in live(seed).happened}
    assert happened >= {
        "produce",
        "commit_round",
        "delete_records",
        "apply_retention",
        "crash",
        "crash in the middle of it",
        "crash during the start",
        "offline",
        "stop_cleanly",
        "recreate_topic",
        "flip_a_bit_and_crash",
        "fill_the_disk",
    }
