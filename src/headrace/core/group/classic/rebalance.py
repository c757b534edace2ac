"""Rebalance state machine of a classic group, on a draft of the group.

A draft is a mutable copy; the group itself does not change. The result, with the responses and timers that belong to
it, is one Decision. Requests are validated in `manager.py`.

    EMPTY → PREPARING (members join) → COMPLETING (the leader assigns) → STABLE → PREPARING …
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType

from headrace.core.coordinator import Answer, CoordinatorTime, Decision, RequestId, Timer
from headrace.core.group.errors import RebalanceInProgress, UnknownMember
from headrace.core.group.group_manager import timer_name
from headrace.core.group.model import (
    NEXT,
    ClassicFact,
    ClassicGroup,
    GroupChanged,
    GroupCoordinatorConfig,
    GroupForgotten,
    GroupState,
    InitialDelay,
    JoinedMember,
    JoinReply,
    Member,
    SyncReply,
)

FAMILY = "classic"
# Kinds of timers
SESSION = "session"
PENDING = "pending"
JOIN = "join"
SYNC = "sync"

# A new member cannot send heartbeats while its join waits. Without this limit, clients that disconnect and retry would
# fill the group with defunct members. Kafka's value.
NEW_MEMBER_JOIN_MS = 5 * 60_000
# Member ids that were allocated and not used yet. More than a large group needs when all of it starts at once. At the
# limit, the oldest pending id is evicted; its client rejoins.
PENDING_MAX = 10_000


class ClassicRebalance:
    def __init__(self, group: ClassicGroup, now: CoordinatorTime, limits: GroupCoordinatorConfig) -> None:
        self._before = group
        self._now = now
        self._limits = limits
        self.group_id = group.group_id
        self.state, self.state_since_ms = group.state, group.state_since_ms
        self.generation = group.generation
        self.protocol_type, self.protocol, self.leader = group.protocol_type, group.protocol, group.leader
        self.members = dict(group.members)
        self.pending = set(group.pending)
        self.unsynced = set(group.unsynced)
        self.initial = group.initial
        self.is_written = False
        self.cause = ""
        self._answers: list[Answer] = []
        self._timers: list[Timer] = []

    # Result

    def decision(self) -> Decision[ClassicFact]:
        after = ClassicGroup(
            group_id=self.group_id,
            state=self.state,
            state_since_ms=self.state_since_ms,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=MappingProxyType(self.members),
            pending=frozenset(self.pending),
            unsynced=frozenset(self.unsynced),
            initial=self.initial,
        )
        facts: Sequence[ClassicFact] = ()
        if after.is_forgettable and not self.is_written:
            facts = (GroupForgotten(self.group_id),)
        elif after != self._before:
            facts = (GroupChanged(after, self.is_written, self.cause),)
        return Decision(answers=tuple(self._answers), facts=facts, timers=tuple(self._timers))

    def answer(self, ticket: RequestId | None, reply: object) -> None:
        if ticket is not None:
            self._answers.append(Answer(ticket, reply))

    # Timers

    def set_timer(self, kind: str, delay_ms: int | None, member_id: str = "") -> None:
        due_ms = None if delay_ms is None else self._now + delay_ms
        self._timers.append(Timer(timer_name(FAMILY, kind, self.group_id, member_id), due_ms))

    def reschedule_heartbeat(self, member: Member) -> None:
        """Restarts the member's session timeout, or cancels it while a request of the member waits here."""
        self.set_timer(SESSION, None if member.is_parked else member.session_timeout_ms, member.member_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Members

    def add_pending_member(self, member_id: str, session_timeout_ms: int) -> None:
        if len(self.pending) >= PENDING_MAX:
            self.drop_pending(next(iter(self.pending)))
        self.pending.add(member_id)
        self.set_timer(PENDING, session_timeout_ms, member_id)

    def drop_pending(self, member_id: str) -> None:
        self.pending.discard(member_id)
        self.set_timer(PENDING, None, member_id)

    def add(self, member: Member) -> None:
        """Adds a member that joins for the first time."""
        if member.member_id in self.pending:
            self.drop_pending(member.member_id)
        if self.initial is not None:
            self.initial = self.initial._replace(somebody_came=True)
        self.members[member.member_id] = member
        if self.leader is None:
            self.leader = member.member_id
        self.set_timer(SESSION, NEW_MEMBER_JOIN_MS, member.member_id)

    def rejoin(self, member: Member) -> None:
        """Handles a known member that joins again, possibly with another subscription."""
        self.release(
            self.members[member.member_id], RebalanceInProgress("a newer request of the member replaced this one")
        )
        self.members[member.member_id] = member
        self.set_timer(SESSION, NEW_MEMBER_JOIN_MS if member.is_new else None, member.member_id)

    def release(self, member: Member, reply: object) -> None:
        """Completes the member's waiting requests with `reply`."""
        self.answer(member.joining, reply)
        self.answer(member.syncing, reply)

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self.release(member, UnknownMember(f"{member_id} is not in the group any more"))
        self.unsynced.discard(member_id)
        self.set_timer(SESSION, None, member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def take_over(self, old_id: str, member: Member, reply: object) -> None:
        """Replaces a static member's id.

        Keeps its assignment and its order among the members. `reply` goes to the old id's requests.
        """
        self.release(self.members[old_id], reply)
        self.set_timer(SESSION, None, old_id)
        self.members = {
            member.member_id if name == old_id else name: member if name == old_id else one
            for name, one in self.members.items()
        }
        if old_id in self.unsynced:
            self.unsynced.symmetric_difference_update({old_id, member.member_id})
        if self.leader == old_id:
            self.leader = member.member_id

    # Rebalancing

    def maybe_prepare_rebalance_or_complete_join(self, cause: str) -> None:
        """Starts a rebalance, or completes the one in progress if all members have joined."""
        if self.state is GroupState.PREPARING:
            self.complete_join_if_ready()
        else:
            self.prepare_rebalance(cause)

    def members_left(self, cause: str) -> None:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING, GroupState.PREPARING):
            self.maybe_prepare_rebalance_or_complete_join(cause)

    def prepare_rebalance(self, cause: str) -> None:
        if self.state is GroupState.COMPLETING:
            self._call_off_sync()
        self.unsynced.clear()
        self.set_timer(SYNC, None)
        was_empty = self.state is GroupState.EMPTY
        self._enter(GroupState.PREPARING)
        self.cause = cause
        if not was_empty:
            self.initial = None
            self.set_timer(JOIN, self.rebalance_timeout_ms)
            self.complete_join_if_ready()
        elif self._limits.initial_delay_ms == 0:
            self.complete_join()
        else:
            delay_ms = self._limits.initial_delay_ms
            self.initial = InitialDelay(delay_ms, max(self.rebalance_timeout_ms - delay_ms, 0))
            self.set_timer(JOIN, delay_ms)

    def _call_off_sync(self) -> None:
        """Rejects the waiting SyncGroup requests when a generation ends before its leader has assigned partitions."""
        for member_id, member in self.members.items():
            self.answer(member.syncing, RebalanceInProgress("the group rebalances again"))
            released = replace(member, syncing=None, assignment=b"")
            if member.syncing is not None:
                self.reschedule_heartbeat(released)
            self.members[member_id] = released

    def complete_join_if_ready(self) -> None:
        everyone = all(member.joining is not None for member in self.members.values()) and not self.pending
        if self.state is GroupState.PREPARING and self.initial is None and everyone:
            self.complete_join()

    def join_is_due(self) -> None:
        """Completes the join phase when its time is over. The initial delay is extended while members keep joining."""
        initial = self.initial
        if initial is not None and initial.somebody_came and initial.remaining_ms:
            delay_ms = min(self._limits.initial_delay_ms, initial.remaining_ms)
            self.initial = InitialDelay(delay_ms, max(initial.remaining_ms - initial.delay_ms, 0))
            self.set_timer(JOIN, delay_ms)
        else:
            self.complete_join()

    def complete_join(self) -> None:
        self.initial = None
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self.remove(member.member_id)
        if self.members and not self._elect_leader():
            self.set_timer(JOIN, self.rebalance_timeout_ms)  # only static members are left: wait for one to rejoin
            return
        self.set_timer(JOIN, None)
        self.generation += 1
        if self.members:
            self._begin_generation()
        else:
            self._enter(GroupState.EMPTY)
            self.protocol = self.leader = None
            self.is_written = True

    def _elect_leader(self) -> bool:
        """Keeps the group leader if it has rejoined, else elects the first member that has.

        Returns whether there is one.
        """
        if self.leader is None or self.members[self.leader].joining is None:
            self.leader = next((one.member_id for one in self.members.values() if one.joining is not None), self.leader)
        return self.leader is not None and self.members[self.leader].joining is not None

    def _begin_generation(self) -> None:
        self.protocol = chosen_protocol(self.members.values())
        self._enter(GroupState.COMPLETING)
        self.unsynced = set(self.members)
        for member_id, member in self.members.items():
            self.answer(member.joining, self.join_reply(member_id))
            self.members[member_id] = replace(member, joining=None, is_new=False)
            self.reschedule_heartbeat(self.members[member_id])
        self.set_timer(SYNC, self.rebalance_timeout_ms)

    def join_reply(self, member_id: str) -> JoinReply:
        members = self.joined_members() if member_id == self.leader else ()
        return JoinReply(member_id, self.generation, self.protocol_type, self.protocol, self.leader or "", members)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata_for(self.protocol))
            for member in self.members.values()
        )

    def propagate_assignment(self, assignments: dict[str, bytes]) -> None:
        """Distributes the leader's assignment: completes the waiting SyncGroup requests."""
        self._enter(GroupState.STABLE)
        self.is_written = True
        for member_id, member in self.members.items():
            assignment = assignments.get(member_id, b"")
            self.answer(member.syncing, SyncReply(assignment, self.protocol_type, self.protocol))
            self.members[member_id] = replace(member, assignment=assignment, syncing=None)
            if member.syncing is not None:
                self.reschedule_heartbeat(self.members[member_id])

    def synced(self, member_id: str) -> None:
        self.unsynced.discard(member_id)
        if not self.unsynced:
            self.set_timer(SYNC, None)

    def sync_is_due(self) -> None:
        """Removes members that joined and sent no SyncGroup in time."""
        late = sorted(self.unsynced)
        for member_id in late:
            self.remove(member_id)
        self.unsynced.clear()
        if late:
            self.members_left(f"{', '.join(late)} did not sync in time")

    def _enter(self, state: GroupState) -> None:
        assert state is self.state or state in NEXT[self.state], f"{self.state} is not followed by {state}"
        self.state = state
        self.state_since_ms = self._now.wall_ms


def chosen_protocol(members: Iterable[Member]) -> str | None:
    """Returns the protocol with most votes among those that all members support.

    In a tie, the first member's order decides.
    """
    everyone = list(members)
    if not everyone:
        return None
    common = [offered.name for offered in everyone[0].protocols if all(one.speaks(offered.name) for one in everyone)]
    votes = dict.fromkeys(common, 0)
    for member in everyone:
        favourite = next((offered.name for offered in member.protocols if offered.name in votes), None)
        if favourite is not None:
            votes[favourite] += 1
    return max(votes, key=lambda name: votes[name], default=None)
