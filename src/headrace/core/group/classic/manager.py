"""Classic consumer groups: members join, the group leader assigns partitions, members sync and send heartbeats.

Validates requests and returns decisions; only `apply` changes state. Joining is in `membership.py`, the rebalance
state machine in `rebalance.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.core.coordinator import Answer, CoordinatorRecord, CoordinatorTime, Decision, RequestId, Timer, merged
from headrace.core.group.classic.membership import (
    ClassicDecision,
    cause,
    check_generation,
    check_group_id,
    check_names,
    checked_member,
    joined,
    leaving_member,
)
from headrace.core.group.classic.rebalance import FAMILY, JOIN, PENDING, SESSION, SYNC, ClassicRebalance
from headrace.core.group.classic.subscription import subscribed_topics
from headrace.core.group.errors import InconsistentProtocol, InvalidSessionTimeout, RebalanceInProgress, UnknownMember
from headrace.core.group.group_manager import Committer, OffsetExpirationCondition, split_timer, timer_name
from headrace.core.group.model import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicFact,
    ClassicGroup,
    GroupChanged,
    GroupCoordinatorConfig,
    GroupForgotten,
    GroupListing,
    GroupState,
    JoinRequest,
    Member,
    MemberIdentity,
    SyncReply,
    SyncRequest,
)
from headrace.core.group.records import GROUP_KIND, group_record, read_group, read_group_key
from headrace.model.errors import RequestError


class ClassicGroups:
    name = FAMILY
    record_kinds = frozenset({GROUP_KIND})
    fact_types: tuple[type, ...] = (GroupChanged, GroupForgotten)

    def __init__(self, limits: GroupCoordinatorConfig) -> None:
        self._limits = limits
        self._groups: dict[str, ClassicGroup] = {}

    def get(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    def _draft(self, group: ClassicGroup, now: CoordinatorTime) -> ClassicRebalance:
        return ClassicRebalance(group, now, self._limits)

    # Joining

    def join(self, request: JoinRequest, new_id: str, ticket: RequestId, now: CoordinatorTime) -> ClassicDecision:
        """Handles JoinGroup. A member without an id gets `new_id`."""
        check_group_id(request.group_id)
        check_names(request)
        limits = self._limits
        if not limits.session_timeout_min_ms <= request.session_timeout_ms <= limits.session_timeout_max_ms:
            raise InvalidSessionTimeout(f"a session of {request.session_timeout_ms} ms is not between the limits")
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise UnknownMember(f"there is no group {request.group_id}")
            group = ClassicGroup(group_id=request.group_id)
        return joined(group, request, new_id, ticket, now, limits)

    # Syncing, heartbeats, leaving

    def sync(self, request: SyncRequest, ticket: RequestId, now: CoordinatorTime) -> ClassicDecision:
        group = self._known_group(request.group_id)
        member = checked_member(group, request.member_id, request.instance_id)
        check_generation(group, request.generation)
        for said, known in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
            if said is not None and said != known:
                raise InconsistentProtocol(f"the group's protocol is {group.protocol_type} {group.protocol}")
        draft = self._draft(group, now)
        match group.state:
            case GroupState.PREPARING:
                raise RebalanceInProgress("members are joining again")
            case GroupState.COMPLETING:
                draft.answer(member.syncing, RebalanceInProgress("a newer request of the member replaced this one"))
                draft.members[member.member_id] = replace(member, syncing=ticket)
                draft.set_timer(SESSION, None, member.member_id)
                draft.synced(member.member_id)
                if member.member_id == group.leader:
                    draft.propagate_assignment(dict(request.assignments))
            case GroupState.STABLE:
                draft.synced(member.member_id)
                draft.reschedule_heartbeat(member)
                draft.answer(ticket, SyncReply(member.assignment, group.protocol_type, group.protocol))
            case _:
                raise UnknownMember(f"group {group.group_id} has no members")
        return draft.decision()

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        ticket: RequestId,
        now: CoordinatorTime,
    ) -> ClassicDecision:
        group = self._known_group(group_id)
        member = checked_member(group, member_id, instance_id)
        check_generation(group, generation)
        reply = RebalanceInProgress("members are joining again") if group.state is GroupState.PREPARING else None
        return Decision(answers=(Answer(ticket, reply),), timers=self._alive(group, member, now))

    def _alive(self, group: ClassicGroup, member: Member, now: CoordinatorTime) -> tuple[Timer, ...]:
        if member.is_parked:
            return ()
        return (Timer(timer_name(FAMILY, SESSION, group.group_id, member.member_id), now + member.session_timeout_ms),)

    def leave(
        self, group_id: str, leaving: Sequence[MemberIdentity], ticket: RequestId, now: CoordinatorTime
    ) -> ClassicDecision:
        """Handles LeaveGroup. The response has an error or None for each member, in request order."""
        group = self._known_group(group_id)
        draft = self._draft(group, now)
        outcomes: list[RequestError | None] = []
        causes: list[str] = []
        for one in leaving:
            try:
                member_id = leaving_member(draft, one)
            except RequestError as error:
                outcomes.append(error)
                continue
            outcomes.append(None)
            if member_id in draft.pending:
                draft.drop_pending(member_id)
            else:
                draft.remove(member_id)
            causes.append(cause(f"{member_id} leaves", one.reason))
        if causes:
            draft.members_left("; ".join(causes))
        draft.answer(ticket, outcomes)
        return draft.decision()

    def _known_group(self, group_id: str) -> ClassicGroup:
        check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownMember(f"there is no group {group_id}")
        return group

    # Group manager interface

    def holds(self, group_id: str) -> bool:
        return group_id in self._groups

    def is_empty(self, group_id: str) -> bool:
        return self._groups[group_id].state is GroupState.EMPTY

    def listings(self) -> Iterable[GroupListing]:
        for group in self._groups.values():
            yield GroupListing(group.group_id, group.protocol_type or "", group.state, self.name)

    def encode(self, fact: ClassicFact) -> CoordinatorRecord | None:
        if isinstance(fact, GroupForgotten):
            group = self._groups.get(fact.group_id)
            return group_record(fact.group_id, None) if group is not None and group.generation else None
        return group_record(fact.group.group_id, fact.group) if fact.is_written else None

    def apply(self, fact: ClassicFact, offset: int) -> None:
        if isinstance(fact, GroupForgotten):
            self._groups.pop(fact.group_id, None)
        else:
            self._groups[fact.group.group_id] = fact.group

    def replay(self, kind: int, record: CoordinatorRecord, offset: int) -> None:
        group_id = read_group_key(record)
        if record.value is None:
            self._groups.pop(group_id, None)
        else:
            self._groups[group_id] = read_group(group_id, record.value)

    def loaded(self, now: CoordinatorTime) -> ClassicDecision:
        """Restarts every member's session timeout, so that members have time to find the new coordinator."""
        return merged([self._resumed(group, now) for group in self._groups.values()])

    def _resumed(self, group: ClassicGroup, now: CoordinatorTime) -> ClassicDecision:
        draft = self._draft(group, now)
        for member in group.members.values():
            draft.reschedule_heartbeat(member)
        if len(group.members) > self._limits.members_max:
            draft.prepare_rebalance("the group has more members than it may have now")
        elif group.members and group.leader is None:
            draft.prepare_rebalance("the group was downgraded from the consumer protocol and has no assignment yet")
        return draft.decision()

    def expire(self, timer: str, now: CoordinatorTime) -> ClassicDecision:
        kind, group_id, member_id = split_timer(timer)
        group = self._groups.get(group_id)
        if group is None:
            return Decision()
        draft = self._draft(group, now)
        if kind == SESSION and member_id in group.members:
            draft.remove(member_id)
            draft.members_left(f"{member_id} was silent for longer than its session")
        elif kind == PENDING and member_id in group.pending:
            draft.pending.discard(member_id)
            draft.complete_join_if_ready()
        elif kind == JOIN and group.state is GroupState.PREPARING:
            draft.join_is_due()
        elif kind == SYNC and group.state in (GroupState.COMPLETING, GroupState.STABLE):
            draft.sync_is_due()
        return draft.decision()

    def check_commit(self, group_id: str, committer: Committer, now: CoordinatorTime) -> Sequence[Timer]:
        group = self._groups[group_id]
        if committer.generation < 0 and group.state is GroupState.EMPTY:
            return ()
        names_itself = committer.generation >= 0 or committer.member_id or committer.instance_id is not None
        if not names_itself:
            if committer.transactional:
                return ()  # the producer's epoch fences it
            raise UnknownMember(f"group {group_id} has members, so only they may commit")
        member = checked_member(group, committer.member_id, committer.instance_id)
        check_generation(group, committer.generation)
        if group.state is GroupState.COMPLETING and not committer.transactional:
            raise RebalanceInProgress("the new generation has not been shared out yet")
        return self._alive(group, member, now)

    def check_fetch(self, group_id: str, committer: Committer) -> None:
        """Checks nothing: members of classic groups send no member id with OffsetFetch."""

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        group = self._groups[group_id]
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE or group.protocol is None:
            return None
        read: set[str] = set()
        for member in group.members.values():
            topics = subscribed_topics(member.metadata_for(group.protocol))
            if topics is None:
                return None
            read |= topics
        return frozenset(read)

    def offsets_rule(self, group_id: str) -> OffsetExpirationCondition:
        group = self._groups[group_id]
        if group.state is GroupState.EMPTY:
            return OffsetExpirationCondition(idle_since_ms=None if group.state_since_ms < 0 else group.state_since_ms)
        topics = self.subscribed_topics(group_id) if group.state is GroupState.STABLE else None
        return (
            OffsetExpirationCondition(keeps_all=True)
            if topics is None
            else OffsetExpirationCondition(keeps_topics=topics)
        )

    def forget(self, group_id: str) -> Sequence[ClassicFact]:
        return (GroupForgotten(group_id),)
