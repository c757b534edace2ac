"""How often to kill, and by which seed.

`make test` kills a few times and uses the same seed in every run: one per test, derived from the test's name.
`make torture` kills many times and uses a new seed for each test unless SEED is set; it prints the seed. A seed fixes
what the test decides (whom to kill, after how much work, what clients do next). It does not fix how the kernel
schedules processes, so a seed makes a failure likely to come again, not certain.
"""

import os
import zlib
from random import Random, SystemRandom

KILLS = int(os.environ.get("TORTURE_KILLS", "0"))  # 0: an ordinary test run
SOAK_MINUTES = float(os.environ.get("TORTURE_SOAK_MINUTES", "0"))  # of tests that run for a time; 0: a few steps
SEED = os.environ.get("TORTURE_SEED", "")
SECONDS_MAX = 60.0  # a client that gets no further for so long does not get further any more


def kills(in_a_test_run: int, *, times: int = 1) -> int:
    """`times` is for tests whose kills cost little: under torture they get that many times KILLS."""
    return KILLS * times or in_a_test_run


def seed_of(test: str) -> int:
    if SEED:
        return int(SEED)
    return SystemRandom().randrange(2**32) if KILLS else zlib.crc32(test.encode())


class Dice(Random):
    """A source of chance that remembers where it began."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.first_seed = seed
