"""Follower truncation: the offset at which a follower's log diverges from its leader's (KIP-101, KIP-279, KIP-595).

A follower sends with each fetch its log end and the leader epoch of its last batch. If the leader's log differs, the
leader returns its largest epoch that is not above that one, and that epoch's end offset. The follower truncates its
log to the common part and fetches again: each exchange goes at least one epoch back, until the logs agree. Followers
never truncate to their own high watermark, which may lag behind what was committed.

Pure; performs no I/O.
"""

from typing import NamedTuple, Protocol

from headrace.model.ids import NO_EPOCH


class EpochEndOffset(NamedTuple):
    """A leader epoch, and the offset after its last record."""

    epoch: int
    end_offset: int


class Epochs(Protocol):
    """Interface to the leader epoch cache of a log."""

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Returns the largest known epoch that is not above `epoch`, and its end offset; NO_EPOCH if there is none."""


def divergence(leader: Epochs, leader_end: int, fetch_offset: int, last_fetched_epoch: int) -> EpochEndOffset | None:
    """Leader: returns the diverging epoch and its end offset.

    Returns None if the follower's log is a prefix of the leader's.
    """
    if last_fetched_epoch == NO_EPOCH:
        return None  # an empty log, or a follower that does not send the epoch
    epoch, end = leader.end_offset_for(last_fetched_epoch, leader_end)
    if epoch == NO_EPOCH:  # the leader's log is empty: a log that ends at the same offset cannot differ from it
        return EpochEndOffset(NO_EPOCH, leader_end) if fetch_offset > leader_end else None
    if epoch < last_fetched_epoch or end < fetch_offset:
        return EpochEndOffset(epoch, end)
    return None


def truncation(follower: Epochs, follower_end: int, diverging: EpochEndOffset) -> int:
    """Follower: returns the offset to truncate to, at most `follower_end`."""
    if diverging.epoch == NO_EPOCH:
        return min(max(diverging.end_offset, 0), follower_end)
    own_epoch, own_end = follower.end_offset_for(diverging.epoch, follower_end)
    if own_epoch == NO_EPOCH:  # the log has only epochs above the leader's
        return min(diverging.end_offset, follower_end)
    if own_epoch != diverging.epoch:
        return min(own_end, follower_end)  # the previous epoch; the next response narrows it down further
    return min(own_end, diverging.end_offset, follower_end)
