"""Where a follower's log parts from its leader's, and how much of it has to go.

A follower tells with each fetch where its log ends and of which leader epoch its last batch is. If the leader's history
is another one, it answers with the largest epoch of its own that is not above that one, and where it ended. The
follower cuts its log to what both may share, and asks again: each round one epoch less, until the histories meet
(KIP-101, KIP-279, KIP-595). Never by its own watermark: that may lag behind what was committed.
"""

from typing import NamedTuple, Protocol

from headrace.model.ids import NO_EPOCH


class EpochEndOffset(NamedTuple):
    """A leader epoch, and the offset after its last record."""

    epoch: int
    end_offset: int


class Epochs(Protocol):
    """The leader epochs of a log, as the storage keeps them."""

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest known epoch not above the asked one, and where it ends; NO_EPOCH if there is none."""


def divergence(leader: Epochs, leader_end: int, fetch_offset: int, last_fetched_epoch: int) -> EpochEndOffset | None:
    """On the leader: what we have instead, unless a log that ends there, in that epoch, is a beginning of ours."""
    if last_fetched_epoch == NO_EPOCH:
        return None  # an empty log, or a follower that does not say
    epoch, end = leader.end_offset_for(last_fetched_epoch, leader_end)
    if epoch == NO_EPOCH:  # this log is empty: there is nothing in it from which a history that ends here could differ
        return EpochEndOffset(NO_EPOCH, leader_end) if fetch_offset > leader_end else None
    if epoch < last_fetched_epoch or end < fetch_offset:
        return EpochEndOffset(epoch, end)
    return None


def truncation(follower: Epochs, follower_end: int, diverging: EpochEndOffset) -> int:
    """On the follower: where to cut, given the leader's answer. At most `follower_end`."""
    if diverging.epoch == NO_EPOCH:
        return min(max(diverging.end_offset, 0), follower_end)
    own_epoch, own_end = follower.end_offset_for(diverging.epoch, follower_end)
    if own_epoch == NO_EPOCH:  # all we have is of later epochs than the leader knows
        return min(diverging.end_offset, follower_end)
    if own_epoch != diverging.epoch:
        return min(own_end, follower_end)  # the epoch before it; the next answer tells where to go on
    return min(own_end, diverging.end_offset, follower_end)
