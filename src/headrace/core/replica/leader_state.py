"""A leader's view of its followers: fetch offsets, ISR, high watermark.

The high watermark: up to where every in-sync replica holds the log, so that consumers may read it.

What a leader knows of its followers: how far each has come, who is in sync, up to where everybody is.

Decides when to propose another ISR, and where the watermark stands. Whoever commits proposals is elsewhere; time and
offsets are handed in. A follower asks one past its end: that request is how it says "I hold everything before this".

Between a proposal and its outcome the leader does not know which ISR holds. Until it does, it waits for everybody who
may be in it: those who were, and those who are to join (the *maximal ISR*).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from headrace.core.image.model import PartitionRegistration


def high_watermark(ends: Mapping[int, int], isr: Collection[int]) -> int:
    """The offset that every in-sync replica has reached."""
    assert isr, "a leader is always in its own ISR"
    return min(map(ends.__getitem__, isr))


Eligible = Callable[[int, int], bool]  # broker, the epoch that it fetches with


@dataclass(slots=True)
class ReplicaState:
    """One follower, as its fetches show it."""

    last_caught_up_ms: int  # when it last had everything that the leader had
    end_offset: int = -1  # it holds everything below; unknown before its first fetch
    broker_epoch: int = -1
    fetched_ms: int = 0
    leader_end_then: int = 0  # where the leader's log ended at that fetch
    fetches: int = 0  # so far
    log_start_offset: int = -1  # where its log begins; unknown before its first fetch

    def fetched(self, offset: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self.leader_end_then and self.end_offset >= 0:
            # It has what there was when it asked before: it is behind only by what came since.
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.fetched_ms)
        self.end_offset, self.broker_epoch = offset, broker_epoch
        self.fetched_ms, self.leader_end_then = now_ms, leader_end
        self.fetches += 1

    def fetched_again(self, now_ms: int) -> None:
        """It has asked once more for what comes after the end, and that is where it was."""
        self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        self.fetched_ms, self.leader_end_then = now_ms, self.end_offset
        self.fetches += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingIsr:
    """An ISR that is on its way into the facts."""

    isr: tuple[int, ...]
    joining: Mapping[int, int] = field(default_factory=dict)  # with the broker epochs that they fetch with


class LeaderState:
    """One leader epoch of one partition, on the leader's side."""

    __slots__ = ("_followers", "_node_id", "_pending", "_state", "deleted_to", "epoch_start")

    def __init__(self, node_id: int, state: PartitionRegistration, epoch_start: int, now_ms: int) -> None:
        assert node_id in state.isr, "a leader is always in its own ISR"
        self._node_id = node_id
        self._state = state
        self.epoch_start = epoch_start  # where the log ended when this epoch began
        self.deleted_to = -1  # DeleteRecords of this epoch: who joins the ISR must not bring those records back
        self._pending: PendingIsr | None = None
        self._followers = {one: ReplicaState(now_ms) for one in state.replicas if one != node_id}

    @property
    def state(self) -> PartitionRegistration:
        return self._state

    @property
    def isr(self) -> tuple[int, ...]:
        """As it is committed."""
        return self._state.isr

    @property
    def followers(self) -> Mapping[int, ReplicaState]:
        return self._followers

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Everybody who may be in the ISR: who leaves counts until that is committed, who joins from now on."""
        if self._pending is None:
            return self._state.isr
        return (*self._state.isr, *(one for one in self._pending.isr if one not in self._state.isr))

    def follow(self, state: PartitionRegistration, now_ms: int) -> None:
        """The facts say something new about this same leader epoch."""
        if state.partition_epoch <= self._state.partition_epoch:
            return
        self._state = state
        self._pending = None  # it was made for a state that is no more
        for one in state.replicas:
            if one != self._node_id and one not in self._followers:
                self._followers[one] = ReplicaState(now_ms)
        for one in [one for one in self._followers if one not in state.replicas]:
            del self._followers[one]

    def fetched(self, broker: int, offset: int, broker_epoch: int, leader_end: int, now_ms: int) -> bool:
        """A follower has shown how far it is; False if it is no replica of this partition."""
        follower = self._followers.get(broker)
        if follower is None:
            return False
        follower.fetched(offset, broker_epoch, leader_end, now_ms)
        return True

    def starts_at(self, broker: int, log_start_offset: int) -> bool:
        """Records where a follower's log begins. True if that has changed."""
        follower = self._followers.get(broker)
        if follower is None or follower.log_start_offset == log_start_offset:
            return False
        follower.log_start_offset = log_start_offset
        return True

    def lacks_beginning(self, broker: int, fetch_offset: int, log_start_offset: int, own_start: int) -> bool:
        """Whether a replica's log is empty, begins past this leader's log start, and lacks the records in between.

        An election of a replica that lacked records leads to that: the log of another replica was emptied past the new
        leader's end, and the new leader writes other records at those offsets. Replicas in the ISR and the ELR hold
        every committed record, and retention may have emptied their logs earlier than the leader's.
        """
        holds_committed = broker in self.maximal_isr or broker in self._state.elr
        return not holds_committed and own_start < fetch_offset == log_start_offset

    def low_watermark(self, own_start: int) -> int:
        """The lowest log start offset of all replicas that may be in the ISR, so that may lead next."""
        followers = (self._followers.get(one) for one in self.maximal_isr)
        return min([own_start, *(one.log_start_offset for one in followers if one is not None)])

    def fetch_counts_of_electable(self, *, may_be_fenced: bool) -> dict[int, int]:
        """By broker, the fetches of each replica that could lead instead without this broker's knowledge.

        While this broker's session is valid, it stays in the ISR, and no member of the ELR is elected. It hands over
        to another member of the ISR at most, by a reassignment or a preferred leader election.
        """
        able = {*self.maximal_isr, *(self._state.elr if may_be_fenced else ())}
        return {broker: follower.fetches for broker, follower in self._followers.items() if broker in able}

    def watermark(self, own_end: int, min_isr: int) -> int | None:
        """Up to where everybody has the log; None while too few are in sync for anything to be committed (KIP-966).

        An ELR that is not empty says the same: its members rely on the watermark standing still.
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
        """The ISR that should be, if it is another one than there is; None also while a proposal is on its way."""
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
        # Up to the watermark alone is not enough: it may lie below what was committed in an earlier epoch, until this
        # leader has heard of everybody.
        has_committed = follower.end_offset >= max(watermark, self.epoch_start)
        return has_committed and follower.log_start_offset >= self.deleted_to

    def proposed(self, proposal: PendingIsr) -> None:
        self._pending = proposal

    def refused(self, proposal: PendingIsr) -> None:
        """It is known not to be in the facts, and not to get there any more."""
        if self._pending is proposal:
            self._pending = None
