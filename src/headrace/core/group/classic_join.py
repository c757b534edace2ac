"""Joining a classic group: who gets in, under which id, and whether the others have to join again.

Decides about one group and one request; the mechanics of the rebalance that follows are in `classic_draft.py`.
"""

from dataclasses import replace

from headrace.core.coordinator import Decision, Moment, Ticket
from headrace.core.group.classic_draft import SESSION, Draft, chosen_protocol
from headrace.core.group.classic_requests import (
    cause,
    check_protocols,
    checked_member,
    new_member,
    reads_the_same,
    rejoined,
)
from headrace.core.group.errors import FencedInstance, GroupFull, MemberIdRequired, UnknownMember
from headrace.core.group.values import ClassicFact, ClassicGroup, GroupLimits, GroupState, JoinRequest, Member

ClassicDecision = Decision[ClassicFact]


def joined(
    group: ClassicGroup, request: JoinRequest, new_id: str, ticket: Ticket, now: Moment, limits: GroupLimits
) -> ClassicDecision:
    """`new_id` is taken by a member that has none yet."""
    draft = Draft(group, now, limits)
    if not _has_room(group, request.member_id, limits):
        return _turned_away(draft, group, request.member_id, ticket, limits)
    check_protocols(group, request)
    if request.member_id:
        return _join_again(draft, group, request, ticket)
    return _join_new(draft, group, request, new_id, ticket)


def _has_room(group: ClassicGroup, member_id: str, limits: GroupLimits) -> bool:
    """While members come back, the first who do have a place; afterwards, those who have one keep it."""
    known = group.members.get(member_id)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING:
        waiting = sum(1 for member in group.members.values() if member.joining is not None)
        return (known is not None and known.joining is not None) or waiting < limits.members_max
    return known is not None or len(group.members) < limits.members_max


def _turned_away(
    draft: Draft, group: ClassicGroup, member_id: str, ticket: Ticket, limits: GroupLimits
) -> ClassicDecision:
    draft.answer(ticket, GroupFull(f"group {group.group_id} has {limits.members_max} members"))
    if member_id in group.members:
        draft.remove(member_id)  # nobody has to wait for it
        draft.members_left(f"the group is full: no place for {member_id} any more")
    return draft.decision()


def _join_new(draft: Draft, group: ClassicGroup, request: JoinRequest, new_id: str, ticket: Ticket) -> ClassicDecision:
    member = new_member(request, new_id, ticket)
    if request.instance_id is not None:
        known_as = group.member_of_instance(request.instance_id)
        if known_as is not None:
            return _come_back(draft, group, known_as, member, request)
    elif request.needs_known_id:
        draft.give_out_id(new_id, request.session_timeout_ms)
        draft.answer(ticket, MemberIdRequired(new_id))
        return draft.decision()
    draft.protocol_type = request.protocol_type
    draft.add(member)
    draft.rebalance_or_complete(cause(f"{new_id} joins", request.reason))
    return draft.decision()


def _join_again(draft: Draft, group: ClassicGroup, request: JoinRequest, ticket: Ticket) -> ClassicDecision:
    member_id = request.member_id
    if member_id in group.pending and request.instance_id is None:
        draft.protocol_type = request.protocol_type
        draft.add(new_member(request, member_id, ticket))
        draft.rebalance_or_complete(cause(f"{member_id} joins", request.reason))
        return draft.decision()
    known = checked_member(group, member_id, request.instance_id)
    same = known.protocols == request.protocols
    if group.state is GroupState.EMPTY:
        raise UnknownMember(f"group {group.group_id} has restarted")
    is_current = group.state is GroupState.COMPLETING or (
        group.state is GroupState.STABLE and group.leader != member_id
    )
    if same and is_current:
        # The reply was lost, or the client is overcautious: nothing has changed, so nobody else is disturbed.
        draft.answer(ticket, draft.join_reply(member_id))
        draft.heard_from(known)
        return draft.decision()
    draft.rejoin(replace(rejoined(known, request, ticket), is_new=known.is_new))
    what = "leader joins again" if same else "joins again with another subscription"
    draft.rebalance_or_complete(cause(f"{member_id} {what}", request.reason))
    return draft.decision()


def _come_back(draft: Draft, group: ClassicGroup, old_id: str, member: Member, request: JoinRequest) -> ClassicDecision:
    """KIP-345: a static member restarts under a new id. The old one is fenced, and its place is kept."""
    known = group.members[old_id]
    member = replace(member, assignment=known.assignment, is_new=False)
    ticket, leader_before = member.joining, group.leader
    draft.take_over(old_id, member, FencedInstance(f"{request.instance_id} has joined as {member.member_id}"))
    draft.set_timer(SESSION, None, member.member_id)
    stays = (
        group.state is GroupState.STABLE
        and chosen_protocol(draft.members.values()) == group.protocol
        and reads_the_same(known, member, group)
    )
    if not stays:
        draft.rebalance_or_complete(cause(f"{request.instance_id} comes back as {member.member_id}", ""))
        return draft.decision()
    member = draft.members[member.member_id] = replace(member, joining=None)
    draft.heard_from(member)
    draft.is_written = True
    reply = draft.join_reply(member.member_id)
    if request.can_skip_assignment:
        reply = reply._replace(skip_assignment=bool(reply.members))
    else:
        # An old client that finds itself leading would share out again: it is told the id it had before.
        reply = reply._replace(members=(), leader=leader_before or "")
    draft.answer(ticket, reply)
    return draft.decision()
