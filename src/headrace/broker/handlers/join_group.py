"""JoinGroup: a member comes, or comes again, and waits until the others have come too."""

from uuid import uuid4

from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, i32, milliseconds, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.later import Later
from headrace.core.group.errors import MemberIdRequired
from headrace.core.group.values import NO_GENERATION, JoinReply, JoinRequest, Protocol
from headrace.model.errors import GroupDenied, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

READ_GROUP = access_for(ApiKey.JOIN_GROUP, ResourceType.GROUP, Operation.READ)

KNOWN_ID_FROM = 4  # KIP-394
SKIP_ASSIGNMENT_FROM = 9  # KIP-814
# A member's id begins with its client's, for people to recognise. Whole, that could make the id too long for a record.
CLIENT_ID_CHARS_SHOWN = 255


def handle(request: JoinGroupRequest, call: Call) -> JoinGroupResponse | Later[JoinGroupResponse]:
    later = Later(lambda reply: _answered(reply, request.member_id))
    try:
        if not allows(call, READ_GROUP, request.group_id):
            raise GroupDenied(f"no access to group {request.group_id}")
        wish = _wish(request, call)
        new_id = f"{wish.instance_id or wish.client_id[:CLIENT_ID_CHARS_SHOWN]}-{uuid4()}"
        call.broker.groups.runtime.submit(
            request.group_id, lambda machine, ticket, now: machine.join(wish, new_id, ticket, now), later.settle
        )
    except HeadraceError as error:
        return _refused(error, request.member_id)
    return later


def _answered(reply: JoinReply | HeadraceError, asked_as: str) -> JoinGroupResponse:
    if isinstance(reply, HeadraceError):
        return _refused(reply, asked_as)
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


def _wish(request: JoinGroupRequest, call: Call) -> JoinRequest:
    session_timeout_ms = milliseconds(request.session_timeout)
    rebalance_timeout_ms = milliseconds(request.rebalance_timeout)
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=call.client_id,
        client_host=f"/{call.client_host}",  # as Kafka's tools show it
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(one.name, one.metadata) for one in request.protocols),
        needs_known_id=call.api_version >= KNOWN_ID_FROM,
        can_skip_assignment=call.api_version >= SKIP_ASSIGNMENT_FROM,
        reason=request.reason or "",
    )


def _refused(error: HeadraceError, asked_as: str) -> JoinGroupResponse:
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
