"""Waiting for what other processes do: they tell nobody when they have done it, so they are asked again and again."""

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

PAUSE_S = 0.05


def awaited(
    ask: Callable[[], Answer], is_right: Callable[[Answer], object], what: str | Callable[[], str], seconds_max: float
) -> Answer:
    """The first right answer. None by then: what was waited for, and what was answered instead."""
    deadline = time.monotonic() + seconds_max
    while not is_right(answer := ask()):
        if time.monotonic() >= deadline:
            wanted = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds_max:g} s: {wanted}; the last answer was {answer!r}")
        time.sleep(PAUSE_S)
    return answer


def until(condition: Callable[[], object], what: str | Callable[[], str], seconds_max: float) -> None:
    """Until it holds."""
    awaited(condition, bool, what, seconds_max)
