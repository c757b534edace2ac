"""Where two histories part, found by epochs alone: any two logs meet, and nothing common is cut."""

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.replica.follower_truncation import EpochEndOffset, divergence, truncation
from headrace.model.ids import NO_EPOCH


class History:
    """The epochs of a log, from the epoch of each record."""

    def __init__(self, epochs: list[int]) -> None:
        self.epochs = epochs

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        if epoch == NO_EPOCH or not self.epochs:
            return NO_EPOCH, -1
        end = bisect_right(self.epochs, epoch)
        return (self.epochs[end - 1] if end else epoch), end


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs after some terms: in each, one leads and writes, and the other copies a part of it, or nothing."""
    logs: list[list[int]] = [[], []]
    for epoch in range(draw(st.integers(0, 6))):
        leads = draw(st.integers(0, 1))
        written = draw(st.integers(0, 4))
        leader = logs[leads] = logs[leads] + [epoch] * written
        if draw(st.booleans()):
            logs[1 - leads] = leader[: len(leader) - draw(st.integers(0, written))]
    return logs[0], logs[1]


@given(histories())
def test_rule_18_a_follower_ends_with_a_beginning_of_its_leaders_log(logs: tuple[list[int], list[int]]) -> None:
    leader, follower = logs
    common = next((at for at, pair in enumerate(zip(leader, follower, strict=False)) if pair[0] != pair[1]), None)
    common = min(len(leader), len(follower)) if common is None else common
    log = list(follower)
    for _ in range(20):
        last = log[-1] if log else NO_EPOCH
        diverging = divergence(History(leader), len(leader), len(log), last)
        if diverging is None:
            break
        end = truncation(History(log), len(log), diverging)
        assert end < len(log), "each round cuts something"
        del log[end:]
    assert log == leader[: len(log)]
    assert len(log) == common, "and nothing that both have"


def test_an_empty_log_is_a_beginning_of_any() -> None:
    assert divergence(History([1, 1]), 2, 0, NO_EPOCH) is None


def test_against_an_empty_leader_everything_goes() -> None:
    diverging = divergence(History([]), 0, 3, 1)
    assert diverging == EpochEndOffset(NO_EPOCH, 0)
    assert truncation(History([0, 1, 1]), 3, diverging) == 0


@pytest.mark.parametrize("offset", [50, 100], ids=["before the leader's end", "at the leader's end"])
def test_log_up_to_an_emptied_leaders_end_does_not_diverge(offset: int) -> None:
    """All records of the leader were deleted, and their epochs with them. There is nothing to truncate."""
    assert divergence(History([]), 100, offset, 1) is None


def test_log_past_an_emptied_leaders_end_is_truncated() -> None:
    diverging = divergence(History([]), 100, 120, 1)
    assert diverging == EpochEndOffset(NO_EPOCH, 100)
    assert truncation(History([1] * 120), 120, diverging) == 100
