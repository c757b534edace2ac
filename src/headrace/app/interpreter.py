"""How a process that serves wants its Python: no long collections, no thread that holds up the loop."""

import gc
import sys

# How long another thread of ours may keep the interpreter while the loop wants it: Python's own 5 ms is all that a
# request may be held up altogether.
SWITCH_INTERVAL_S = 0.0005


def tune_interpreter() -> None:
    """What start-up made stays; requests make no cycles worth looking for often. Full collections cost latency."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
