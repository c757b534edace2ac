"""Heartbeat: a member of a classic group is alive, and hears whether it has to join again.

A plain function: a thousand groups send a thousand of these a second and change nothing.
"""

from headrace.broker.call import Call
from headrace.broker.handlers.shared import allows
from headrace.broker.later import Later
from headrace.model.errors import GroupDenied, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.security.access import Operation, ResourceType, access_for

READ_GROUP = access_for(ApiKey.HEARTBEAT, ResourceType.GROUP, Operation.READ)


def handle(request: HeartbeatRequest, call: Call) -> HeartbeatResponse | Later[HeartbeatResponse]:
    group_id, generation, member_id, instance_id = request
    later = Later(_answered)
    try:
        if not allows(call, READ_GROUP, group_id):
            raise GroupDenied(f"no access to group {group_id}")
        # It looks at members, which no commit changes: it need not come between those that are written together.
        call.broker.groups.runtime.submit_together(
            group_id,
            lambda machine, ticket, now: machine.heartbeat(group_id, member_id, instance_id, generation, ticket, now),
            later.settle,
        )
    except HeadraceError as error:
        return HeartbeatResponse(error.code)
    return later


def _answered(reply: HeadraceError | None) -> HeartbeatResponse:
    return HeartbeatResponse() if reply is None else HeartbeatResponse(reply.code)
