"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup (classic protocol).

- JoinGroup adds a member or lets it rejoin; the response waits until the other members have joined.
- SyncGroup takes the assignment from the leader; the responses of all members wait for it.
- Heartbeat keeps a member's session alive and returns whether it must rejoin. A plain function: a thousand groups
  send a thousand of these per second, and they change nothing.
- LeaveGroup removes members; an operator removes static members by their instance ids.
"""

from uuid import uuid4

from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.schema.sync_group.v5.response import SyncGroupResponse

from headrace.broker.api.context import RequestContext
from headrace.broker.api.deferred import DeferredResponse
from headrace.broker.handlers.access import allows
from headrace.broker.handlers.kio_types import NO_ERROR, NO_THROTTLE, i32, milliseconds, wire_error
from headrace.core.group.errors import MemberIdRequired, UnknownMember
from headrace.core.group.model import (
    NO_GENERATION,
    JoinReply,
    JoinRequest,
    MemberIdentity,
    Protocol,
    SyncReply,
    SyncRequest,
)
from headrace.model.errors import ErrorCode, GroupDenied, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, LeftMember
from headrace.security.authorization import Operation, ResourceType, access_for

JOIN_GROUP_READ_GROUP = access_for(ApiKey.JOIN_GROUP, ResourceType.GROUP, Operation.READ)

KNOWN_ID_FROM = 4  # KIP-394
SKIP_ASSIGNMENT_FROM = 9  # KIP-814
# The client id is a readable prefix of the member id. An unbounded one could make the id too long for a record.
CLIENT_ID_CHARS_SHOWN = 255


def handle_join_group(
    request: JoinGroupRequest, call: RequestContext
) -> JoinGroupResponse | DeferredResponse[JoinGroupResponse]:
    later = DeferredResponse(lambda reply: _join_group_answered(reply, request.member_id))
    try:
        if not allows(call, JOIN_GROUP_READ_GROUP, request.group_id):
            raise GroupDenied(f"no access to group {request.group_id}")
        wish = _wish(request, call)
        new_id = f"{wish.instance_id or wish.client_id[:CLIENT_ID_CHARS_SHOWN]}-{uuid4()}"
        call.broker.groups.runtime.submit(
            request.group_id, lambda machine, ticket, now: machine.join(wish, new_id, ticket, now), later.settle
        )
    except HeadraceError as error:
        return _join_group_refused(error, request.member_id)
    return later


def _join_group_answered(reply: JoinReply | HeadraceError, asked_as: str) -> JoinGroupResponse:
    if isinstance(reply, HeadraceError):
        return _join_group_refused(reply, asked_as)
    return JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        generation_id=i32(reply.generation),
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=tuple(
            JoinGroupResponseMember(member_id=one.member_id, group_instance_id=one.instance_id, metadata=one.metadata)
            for one in reply.members
        ),
    )


def _wish(request: JoinGroupRequest, call: RequestContext) -> JoinRequest:
    session_timeout_ms = milliseconds(request.session_timeout)
    rebalance_timeout_ms = milliseconds(request.rebalance_timeout)
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=call.client_id,
        client_host=f"/{call.client_host}",  # format of Kafka's tools
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(one.name, one.metadata) for one in request.protocols),
        needs_known_id=call.api_version >= KNOWN_ID_FROM,
        can_skip_assignment=call.api_version >= SKIP_ASSIGNMENT_FROM,
        reason=request.reason or "",
    )


def _join_group_refused(error: HeadraceError, asked_as: str) -> JoinGroupResponse:
    return JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=wire_error(error.code),
        generation_id=i32(NO_GENERATION),
        protocol_type=None,
        protocol_name=None,
        leader="",
        skip_assignment=False,
        member_id=error.member_id if isinstance(error, MemberIdRequired) else asked_as,
        members=(),
    )


SYNC_GROUP_READ_GROUP = access_for(ApiKey.SYNC_GROUP, ResourceType.GROUP, Operation.READ)


def handle_sync_group(
    request: SyncGroupRequest, call: RequestContext
) -> SyncGroupResponse | DeferredResponse[SyncGroupResponse]:
    later = DeferredResponse(_sync_group_answered)
    try:
        if not allows(call, SYNC_GROUP_READ_GROUP, request.group_id):
            raise GroupDenied(f"no access to group {request.group_id}")
        wish = SyncRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments={one.member_id: one.assignment for one in request.assignments},
        )
        call.broker.groups.runtime.submit(
            request.group_id, lambda machine, ticket, now: machine.sync(wish, ticket, now), later.settle
        )
    except HeadraceError as error:
        return _sync_group_refused(error)
    return later


def _sync_group_answered(reply: SyncReply | HeadraceError) -> SyncGroupResponse:
    if isinstance(reply, HeadraceError):
        return _sync_group_refused(reply)
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


def _sync_group_refused(error: HeadraceError) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=wire_error(error.code),
        protocol_type=None,
        protocol_name=None,
        assignment=b"",
    )


HEARTBEAT_READ_GROUP = access_for(ApiKey.HEARTBEAT, ResourceType.GROUP, Operation.READ)


def handle_heartbeat(
    request: HeartbeatRequest, call: RequestContext
) -> HeartbeatResponse | DeferredResponse[HeartbeatResponse]:
    group_id, generation, member_id, instance_id = request
    later = DeferredResponse(_heartbeat_answered)
    try:
        if not allows(call, HEARTBEAT_READ_GROUP, group_id):
            raise GroupDenied(f"no access to group {group_id}")
        # A heartbeat depends on members, which no offset commit changes, so it may be batched with commits.
        call.broker.groups.runtime.schedule_batched_write(
            group_id,
            lambda machine, ticket, now: machine.heartbeat(group_id, member_id, instance_id, generation, ticket, now),
            later.settle,
        )
    except HeadraceError as error:
        return HeartbeatResponse(error.code)
    return later


def _heartbeat_answered(reply: HeadraceError | None) -> HeartbeatResponse:
    return HeartbeatResponse() if reply is None else HeartbeatResponse(reply.code)


LEAVE_GROUP_READ_GROUP = access_for(ApiKey.LEAVE_GROUP, ResourceType.GROUP, Operation.READ)


async def handle_leave_group(request: LeaveGroupRequest, call: RequestContext) -> LeaveGroupResponse:
    leaving = [MemberIdentity(one.member_id, one.instance_id, one.reason or "") for one in request.members]
    try:
        if not allows(call, LEAVE_GROUP_READ_GROUP, request.group_id):
            raise GroupDenied(f"no access to group {request.group_id}")
        outcomes: list[HeadraceError | None] = await call.broker.groups.call(
            request.group_id, lambda machine, ticket, now: machine.leave(request.group_id, leaving, ticket, now)
        )
    except UnknownMember as error:  # the group does not exist
        outcomes = [error] * len(leaving)
    except HeadraceError as error:
        return LeaveGroupResponse(error.code)
    rows = [
        LeftMember(one.member_id, one.instance_id, ErrorCode.NONE if outcome is None else outcome.code)
        for one, outcome in zip(request.members, outcomes, strict=True)
    ]
    return LeaveGroupResponse(members=rows)
