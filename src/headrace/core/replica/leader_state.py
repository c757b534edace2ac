"""A leader's view of its followers: fetch offsets, ISR, high watermark.

The high watermark is the offset up to which every in-sync replica has the log, so that consumers may read it. A
follower's fetch offset acknowledges every record below it.

Between an ISR proposal and its outcome the leader cannot tell which ISR is committed. Until then, the high watermark
waits for every replica in either of them (the *maximal ISR*).

Pure; performs no I/O. Time and offsets are arguments; the caller commits the proposals.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from headrace.core.image.model import PartitionRegistration


def high_watermark(ends: Mapping[int, int], isr: Collection[int]) -> int:
    """Returns the offset that every in-sync replica has reached."""
    assert isr, "a leader is always in its own ISR"
    return min(map(ends.__getitem__, isr))


Eligible = Callable[[int, int], bool]  # broker id, the broker epoch of its fetches


@dataclass(slots=True)
class ReplicaState:
    """Replication state of one follower, from its fetches."""

    last_caught_up_ms: int  # when it last had the whole log of the leader
    end_offset: int = -1  # it has every record below; unknown before its first fetch
    broker_epoch: int = -1
    fetched_ms: int = 0
    leader_end_then: int = 0  # the leader's log end offset at that fetch
    fetches: int = 0  # so far
    log_start_offset: int = -1  # unknown before its first fetch

    def fetched(self, offset: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self.leader_end_then and self.end_offset >= 0:
            # It has the records that existed at its previous fetch, and lacks only later ones.
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.fetched_ms)
        self.end_offset, self.broker_epoch = offset, broker_epoch
        self.fetched_ms, self.leader_end_then = now_ms, leader_end
        self.fetches += 1

    def fetched_again(self, now_ms: int) -> None:
        """Records a repeated fetch at the log end."""
        self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        self.fetched_ms, self.leader_end_then = now_ms, self.end_offset
        self.fetches += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingIsr:
    """An ISR proposal whose outcome is not known yet."""

    isr: tuple[int, ...]
    # replicas that join, with the broker epochs of their fetches
    joining: Mapping[int, int] = field(default_factory=dict)


class LeaderState:
    """State of one leader epoch of one partition, on the leader."""

    __slots__ = ("_followers", "_node_id", "_pending", "_state", "deleted_to", "epoch_start")

    def __init__(self, node_id: int, state: PartitionRegistration, epoch_start: int, now_ms: int) -> None:
        assert node_id in state.isr, "a leader is always in its own ISR"
        self._node_id = node_id
        self._state = state
        self.epoch_start = epoch_start  # the log end offset when this epoch began
        # offset of DeleteRecords in this epoch: a replica with deleted records must not join the ISR
        self.deleted_to = -1
        self._pending: PendingIsr | None = None
        self._followers = {one: ReplicaState(now_ms) for one in state.replicas if one != node_id}

    @property
    def state(self) -> PartitionRegistration:
        return self._state

    @property
    def isr(self) -> tuple[int, ...]:
        """Returns the committed ISR."""
        return self._state.isr

    @property
    def followers(self) -> Mapping[int, ReplicaState]:
        return self._followers

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Returns every replica that may be in the ISR.

        Leaving replicas are included until the change is committed, joining ones from the proposal on.
        """
        if self._pending is None:
            return self._state.isr
        return (*self._state.isr, *(one for one in self._pending.isr if one not in self._state.isr))

    def follow(self, state: PartitionRegistration, now_ms: int) -> None:
        """Applies a new partition state of the same leader epoch."""
        if state.partition_epoch <= self._state.partition_epoch:
            return
        self._state = state
        self._pending = None  # it was made for the previous state
        for one in state.replicas:
            if one != self._node_id and one not in self._followers:
                self._followers[one] = ReplicaState(now_ms)
        for one in [one for one in self._followers if one not in state.replicas]:
            del self._followers[one]

    def fetched(self, broker: int, offset: int, broker_epoch: int, leader_end: int, now_ms: int) -> bool:
        """Records a follower's fetch. Returns False if the broker is no replica of this partition."""
        follower = self._followers.get(broker)
        if follower is None:
            return False
        follower.fetched(offset, broker_epoch, leader_end, now_ms)
        return True

    def starts_at(self, broker: int, log_start_offset: int) -> bool:
        """Records a follower's log start offset. Returns whether it has changed."""
        follower = self._followers.get(broker)
        if follower is None or follower.log_start_offset == log_start_offset:
            return False
        follower.log_start_offset = log_start_offset
        return True

    def lacks_beginning(self, broker: int, fetch_offset: int, log_start_offset: int, own_start: int) -> bool:
        """Returns whether a replica lacks the beginning of the log: its empty log starts past this leader's log
        start.

        That can happen after an election of a replica that lacked records: the log of another replica was emptied
        past the new leader's end, and the new leader writes other records at those offsets. Replicas in the ISR and
        the ELR have every committed record, and retention may have emptied their logs earlier than the leader's.
        """
        holds_committed = broker in self.maximal_isr or broker in self._state.elr
        return not holds_committed and own_start < fetch_offset == log_start_offset

    def low_watermark(self, own_start: int) -> int:
        """Returns the lowest log start offset of all replicas in the maximal ISR, any of which may lead next."""
        followers = (self._followers.get(one) for one in self.maximal_isr)
        return min([own_start, *(one.log_start_offset for one in followers if one is not None)])

    def fetch_counts_of_electable(self, *, may_be_fenced: bool) -> dict[int, int]:
        """Returns, by broker, the fetch counts of replicas that could be elected without this broker's knowledge.

        While this broker's session is valid, it stays in the ISR, and no member of the ELR is elected. Leadership can
        only move to another member of the ISR, by a reassignment or a preferred leader election.
        """
        able = {*self.maximal_isr, *(self._state.elr if may_be_fenced else ())}
        return {broker: follower.fetches for broker, follower in self._followers.items() if broker in able}

    def watermark(self, own_end: int, min_isr: int) -> int | None:
        """Returns the high watermark; None while the ISR is below `min_isr`, so that nothing is committed (KIP-966).

        Also None while the ELR is not empty: its members are eligible only because the high watermark does not
        advance.
        """
        state = self._state
        if len(state.replicas) == 1:
            return own_end
        if len(state.isr) < min(min_isr, len(state.replicas)) or state.elr:
            return None
        ends = {self._node_id: own_end}
        for broker in self.maximal_isr:
            if broker != self._node_id:
                ends[broker] = self._end_of(broker)
        return high_watermark(ends, self.maximal_isr)

    def _end_of(self, broker: int) -> int:
        follower = self._followers.get(broker)
        return -1 if follower is None else follower.end_offset

    # Proposals

    def proposal(
        self, own_end: int, watermark: int, min_isr: int, now_ms: int, lag_ms_max: int, eligible: Eligible
    ) -> PendingIsr | None:
        """Returns the ISR to propose; None if the ISR is right, or a proposal is pending."""
        if self._pending is not None:
            return None
        state = self._state
        leaving = {one for one in state.isr if self._is_late(one, own_end, now_ms, lag_ms_max)}
        joining = {
            broker: follower.broker_epoch
            for broker, follower in self._followers.items()
            if broker not in state.isr
            and self._is_in_sync(follower, watermark)
            and eligible(broker, follower.broker_epoch)
        }
        has_stale_elr = bool(state.elr) and len(state.isr) >= min(min_isr, len(state.replicas))
        if not leaving and not joining and not has_stale_elr:
            return None
        isr = tuple(one for one in state.replicas if (one in state.isr and one not in leaving) or one in joining)
        return PendingIsr(isr=isr, joining=joining)

    def _is_late(self, broker: int, own_end: int, now_ms: int, lag_ms_max: int) -> bool:
        follower = self._followers.get(broker)
        if follower is None:
            return False  # the leader itself
        return follower.end_offset < own_end and now_ms - follower.last_caught_up_ms > lag_ms_max

    def _is_in_sync(self, follower: ReplicaState, watermark: int) -> bool:
        # Having reached the high watermark is not enough: it may be below what was committed in an earlier epoch, until
        # every in-sync replica has fetched from this leader.
        has_committed = follower.end_offset >= max(watermark, self.epoch_start)
        return has_committed and follower.log_start_offset >= self.deleted_to

    def proposed(self, proposal: PendingIsr) -> None:
        self._pending = proposal

    def refused(self, proposal: PendingIsr) -> None:
        """Clears a proposal that can no longer be committed."""
        if self._pending is proposal:
            self._pending = None
