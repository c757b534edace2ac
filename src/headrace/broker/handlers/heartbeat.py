"""Heartbeat: a member of a classic group is alive, and hears whether it has to join again."""

from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, wire_error
from headrace.broker.handlers.shared import allows
from headrace.model.errors import GroupDenied, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

READ_GROUP = access_for(ApiKey.HEARTBEAT, ResourceType.GROUP, Operation.READ)


async def handle(request: HeartbeatRequest, call: Call) -> HeartbeatResponse:
    error_code = NO_ERROR
    try:
        if not allows(call, READ_GROUP, request.group_id):
            raise GroupDenied(f"no access to group {request.group_id}")
        await call.broker.groups.call(
            request.group_id,
            lambda machine, ticket, now: machine.heartbeat(
                request.group_id, request.member_id, request.group_instance_id, request.generation_id, ticket, now
            ),
        )
    except HeadraceError as error:
        error_code = wire_error(error.code)
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=error_code)
