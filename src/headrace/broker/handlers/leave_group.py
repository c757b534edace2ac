"""LeaveGroup: members say goodbye, or an administrator removes static members by their instance ids."""

from headrace.broker.call import Call
from headrace.broker.handlers.shared import allows
from headrace.core.group.errors import UnknownMember
from headrace.core.group.values import Leaving
from headrace.model.errors import ErrorCode, GroupDenied, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse, LeftMember
from headrace.security.access import Operation, ResourceType, access_for

READ_GROUP = access_for(ApiKey.LEAVE_GROUP, ResourceType.GROUP, Operation.READ)


async def handle(request: LeaveGroupRequest, call: Call) -> LeaveGroupResponse:
    leaving = [Leaving(one.member_id, one.instance_id, one.reason or "") for one in request.members]
    try:
        if not allows(call, READ_GROUP, request.group_id):
            raise GroupDenied(f"no access to group {request.group_id}")
        outcomes: list[HeadraceError | None] = await call.broker.groups.call(
            request.group_id, lambda machine, ticket, now: machine.leave(request.group_id, leaving, ticket, now)
        )
    except UnknownMember as error:  # there is no such group
        outcomes = [error] * len(leaving)
    except HeadraceError as error:
        return LeaveGroupResponse(error.code)
    rows = [
        LeftMember(one.member_id, one.instance_id, ErrorCode.NONE if outcome is None else outcome.code)
        for one, outcome in zip(request.members, outcomes, strict=True)
    ]
    return LeaveGroupResponse(members=rows)
