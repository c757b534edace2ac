"""Whose clock is wrong."""

import pytest

from headrace.broker.controller.clock_skew import check_ahead
from headrace.model.errors import InvalidConfig

HOUR_MS = 3_600_000


def test_a_clock_like_the_others_may_join() -> None:
    check_ahead({}, 1000)
    check_ahead({1: 1000, 2: -1000}, 1000)


@pytest.mark.parametrize(("ahead_ms", "words"), [(HOUR_MS, "3600 s ahead of"), (-HOUR_MS, "3600 s behind")])
def test_a_clock_far_from_the_others_is_refused_with_what_to_do(ahead_ms: int, words: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"{words} that of brokers 1, 2; set it right .*, which is 300000"):
        check_ahead({1: ahead_ms, 2: ahead_ms + 5}, 300_000)


def test_one_wrong_clock_among_the_others_refuses_nobody() -> None:
    check_ahead({1: HOUR_MS, 2: 3, 3: -4}, 300_000)
