"""SyncGroup: the leader brings what it has shared out, everybody waits for their part."""

from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.schema.sync_group.v5.response import SyncGroupResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.later import Later
from headrace.core.group.values import SyncReply, SyncRequest
from headrace.model.errors import GroupDenied, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

READ_GROUP = access_for(ApiKey.SYNC_GROUP, ResourceType.GROUP, Operation.READ)


def handle(request: SyncGroupRequest, call: Call) -> SyncGroupResponse | Later[SyncGroupResponse]:
    later = Later(_answered)
    try:
        if not allows(call, READ_GROUP, request.group_id):
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
        return _refused(error)
    return later


def _answered(reply: SyncReply | HeadraceError) -> SyncGroupResponse:
    if isinstance(reply, HeadraceError):
        return _refused(reply)
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        assignment=reply.assignment,
    )


def _refused(error: HeadraceError) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=wire_error(error.code),
        protocol_type=None,
        protocol_name=None,
        assignment=b"",
    )
