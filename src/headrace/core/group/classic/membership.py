"""Join requests of the classic protocol: validation, membership, member ids, and whether a rebalance is needed.

Pure; performs no I/O. Handles one group and one request; the rebalance that follows is in `rebalance.py`.
"""

from dataclasses import replace

from headrace.core.coordinator import CoordinatorTime, Decision, RequestId
from headrace.core.group.classic.rebalance import SESSION, ClassicRebalance, chosen_protocol
from headrace.core.group.classic.subscription import subscribed_topics
from headrace.core.group.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidGroupId,
    MemberIdRequired,
    UnknownMember,
)
from headrace.core.group.model import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicFact,
    ClassicGroup,
    GroupCoordinatorConfig,
    GroupState,
    JoinRequest,
    Member,
    MemberIdentity,
)
from headrace.model.errors import MessageTooLarge, RequestError

# Records and older requests encode the length of a name in 16 bits.
NAME_BYTES_MAX = 2**15 - 1
# A member id is the instance id or client id, a dash and a random id.
MEMBER_SUFFIX_BYTES = 37
# A member's metadata is part of its group's record, which must fit into a batch of the offsets topic
# (max.message.bytes, 1 MiB). A member whose metadata alone would not fit is rejected before it joins.
METADATA_BYTES_MAX = 1_000_000


def check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("a group has a name")
    if len(group_id.encode()) > NAME_BYTES_MAX:
        raise InvalidGroupId(f"the name of a group has at most {NAME_BYTES_MAX} bytes")


def check_names(request: JoinRequest) -> None:
    """Raises for names that are too long to be encoded."""
    names = [request.instance_id or "", request.protocol_type, *(offered.name for offered in request.protocols)]
    if any(len(name.encode()) > NAME_BYTES_MAX - MEMBER_SUFFIX_BYTES for name in names):
        raise RequestError(f"names have at most {NAME_BYTES_MAX - MEMBER_SUFFIX_BYTES} bytes")


def check_metadata(request: JoinRequest) -> None:
    size = sum(len(offered.metadata) for offered in request.protocols)
    if size > METADATA_BYTES_MAX:
        raise MessageTooLarge(f"a member's metadata has {size} bytes; at most {METADATA_BYTES_MAX} are kept")


def checked_member(group: ClassicGroup, member_id: str, instance_id: str | None) -> Member:
    """Returns the member that sent a request. Raises if it is unknown, or if another process has its instance id."""
    if instance_id is not None:
        current = group.member_of_instance(instance_id)
        if current is None:
            raise UnknownMember(f"no member of {group.group_id} has the instance id {instance_id}")
        if current != member_id:
            raise FencedInstance(f"{instance_id} has joined {group.group_id} with another member id")
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMember(f"{member_id} is not a member of {group.group_id}")
    return member


def check_generation(group: ClassicGroup, generation: int) -> None:
    if generation != group.generation:
        raise IllegalGeneration(f"group {group.group_id} is at generation {group.generation}")


def check_protocols(group: ClassicGroup, request: JoinRequest) -> None:
    """Raises unless at least one protocol is common to all members."""
    if not group.members:
        fits = bool(request.protocol_type and request.protocols)
    else:
        others = [one for one in group.members.values() if one.member_id != request.member_id]
        fits = group.protocol_type == request.protocol_type and any(
            all(one.speaks(offered.name) for one in others) for offered in request.protocols
        )
    if not fits:
        raise InconsistentProtocol(f"members of {group.group_id} have no protocol in common with this one")


def leaving_member(draft: ClassicRebalance, leaving: MemberIdentity) -> str:
    if leaving.instance_id is None:
        if leaving.member_id not in draft.members and leaving.member_id not in draft.pending:
            raise UnknownMember(f"{leaving.member_id} is not a member of {draft.group_id}")
        return leaving.member_id
    current = next((one.member_id for one in draft.members.values() if one.instance_id == leaving.instance_id), None)
    if current is None:
        raise UnknownMember(f"no member of {draft.group_id} has the instance id {leaving.instance_id}")
    # Administrators remove static members by instance id alone.
    if leaving.member_id and leaving.member_id != current:
        raise FencedInstance(f"{leaving.instance_id} has joined {draft.group_id} with another member id")
    return current


def new_member(request: JoinRequest, member_id: str, ticket: RequestId) -> Member:
    return Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        is_new=True,
        joining=ticket,
    )


def rejoined(known: Member, request: JoinRequest, ticket: RequestId) -> Member:
    return replace(new_member(request, known.member_id, ticket), assignment=known.assignment)


def reads_the_same(before: Member, after: Member, group: ClassicGroup) -> bool:
    """Returns whether a static member that rejoined subscribes to the same topics.

    The rest of its metadata may differ.
    """
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return True
    return subscribed_topics(before.metadata_for(group.protocol)) == subscribed_topics(
        after.metadata_for(group.protocol)
    )


def cause(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what


ClassicDecision = Decision[ClassicFact]


def joined(
    group: ClassicGroup,
    request: JoinRequest,
    new_id: str,
    ticket: RequestId,
    now: CoordinatorTime,
    limits: GroupCoordinatorConfig,
) -> ClassicDecision:
    """Handles JoinGroup. A member without an id gets `new_id`."""
    draft = ClassicRebalance(group, now, limits)
    if not _has_room(group, request.member_id, limits):
        return _turned_away(draft, group, request.member_id, ticket, limits)
    check_protocols(group, request)
    if request.member_id:
        return _join_again(draft, group, request, ticket)
    return _join_new(draft, group, request, new_id, ticket)


def _has_room(group: ClassicGroup, member_id: str, limits: GroupCoordinatorConfig) -> bool:
    """Returns whether the group may admit the member.

    During a rebalance the first to join are admitted, otherwise known members are.
    """
    known = group.members.get(member_id)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING:
        waiting = sum(1 for member in group.members.values() if member.joining is not None)
        return (known is not None and known.joining is not None) or waiting < limits.members_max
    return known is not None or len(group.members) < limits.members_max


def _turned_away(
    draft: ClassicRebalance, group: ClassicGroup, member_id: str, ticket: RequestId, limits: GroupCoordinatorConfig
) -> ClassicDecision:
    draft.answer(ticket, GroupFull(f"group {group.group_id} has {limits.members_max} members"))
    if member_id in group.members:
        draft.remove(member_id)  # the rebalance no longer waits for it
        draft.members_left(f"the group is full: removed member {member_id}")
    return draft.decision()


def _join_new(
    draft: ClassicRebalance, group: ClassicGroup, request: JoinRequest, new_id: str, ticket: RequestId
) -> ClassicDecision:
    member = new_member(request, new_id, ticket)
    if request.instance_id is not None:
        known_as = group.member_of_instance(request.instance_id)
        if known_as is not None:
            return _come_back(draft, group, known_as, member, request)
    elif request.needs_known_id:
        draft.add_pending_member(new_id, request.session_timeout_ms)
        draft.answer(ticket, MemberIdRequired(new_id))
        return draft.decision()
    draft.protocol_type = request.protocol_type
    draft.add(member)
    draft.maybe_prepare_rebalance_or_complete_join(cause(f"{new_id} joins", request.reason))
    return draft.decision()


def _join_again(
    draft: ClassicRebalance, group: ClassicGroup, request: JoinRequest, ticket: RequestId
) -> ClassicDecision:
    member_id = request.member_id
    if member_id in group.pending and request.instance_id is None:
        draft.protocol_type = request.protocol_type
        draft.add(new_member(request, member_id, ticket))
        draft.maybe_prepare_rebalance_or_complete_join(cause(f"{member_id} joins", request.reason))
        return draft.decision()
    known = checked_member(group, member_id, request.instance_id)
    same = known.protocols == request.protocols
    if group.state is GroupState.EMPTY:
        raise UnknownMember(f"group {group.group_id} has restarted")
    is_current = group.state is GroupState.COMPLETING or (
        group.state is GroupState.STABLE and group.leader != member_id
    )
    if same and is_current:
        # The response was lost, or the client joins without need. Nothing has changed, so no rebalance starts.
        draft.answer(ticket, draft.join_reply(member_id))
        draft.reschedule_heartbeat(known)
        return draft.decision()
    draft.rejoin(replace(rejoined(known, request, ticket), is_new=known.is_new))
    what = "leader joins again" if same else "joins again with another subscription"
    draft.maybe_prepare_rebalance_or_complete_join(cause(f"{member_id} {what}", request.reason))
    return draft.decision()


def _come_back(
    draft: ClassicRebalance, group: ClassicGroup, old_id: str, member: Member, request: JoinRequest
) -> ClassicDecision:
    """Replaces a static member that restarted with a new member id (KIP-345).

    Fences the old id and keeps its assignment.
    """
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
        draft.maybe_prepare_rebalance_or_complete_join(
            cause(f"{request.instance_id} comes back as {member.member_id}", "")
        )
        return draft.decision()
    member = draft.members[member.member_id] = replace(member, joining=None)
    draft.reschedule_heartbeat(member)
    draft.is_written = True
    reply = draft.join_reply(member.member_id)
    if request.can_skip_assignment:
        reply = reply._replace(skip_assignment=bool(reply.members))
    else:
        # An old client that is the leader would assign partitions again. It gets the leader's previous id instead.
        reply = reply._replace(members=(), leader=leader_before or "")
    draft.answer(ticket, reply)
    return draft.decision()
