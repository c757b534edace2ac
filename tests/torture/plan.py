"""How often to kill, and by which dice.

A test run kills a few times, with dice of its own each time. `make torture` kills many times: KILLS and SEED choose how
often and how. A seed fixes what the test decides (whom to kill, after how much work, what clients do next); when the
kernel lets which process run is nobody's to fix, so a seed makes a failure likely to come again, not certain.
"""

import os
from random import Random, SystemRandom

KILLS = int(os.environ.get("TORTURE_KILLS", "0"))  # 0: an ordinary test run
SEED = os.environ.get("TORTURE_SEED", "")


def kills(in_a_test_run: int, *, times: int = 1) -> int:
    """`times` is for tests whose kills cost little: under torture they get that many times KILLS."""
    return KILLS * times or in_a_test_run


def new_seed() -> int:
    return int(SEED) if SEED else SystemRandom().randrange(2**32)


class Dice(Random):
    """A source of chance that remembers where it began."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.first_seed = seed
