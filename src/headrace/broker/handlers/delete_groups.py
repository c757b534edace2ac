"""DeleteGroups: groups without members, with all their offsets."""

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_THROTTLE, GroupId, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.group.errors import InvalidGroupId
from headrace.model.errors import ErrorCode, GroupDenied, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DELETE_GROUP = access_for(ApiKey.DELETE_GROUPS, ResourceType.GROUP, Operation.DELETE)


async def handle(request: DeleteGroupsRequest, call: Call) -> DeleteGroupsResponse:
    rows = []
    for group_id in dict.fromkeys(request.groups_names):
        error_code = wire_error(await _deleted(group_id, call))
        rows.append(DeletableGroupResult(group_id=GroupId(group_id), error_code=error_code))
    return DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=tuple(rows))


async def _deleted(group_id: str, call: Call) -> ErrorCode:
    try:
        if not allows(call, DELETE_GROUP, group_id):
            raise GroupDenied(f"no access to group {group_id}")
        if not group_id:
            raise InvalidGroupId("a group has a name")
        await call.broker.groups.call(group_id, lambda machine, ticket, now: machine.delete(group_id, ticket))
    except HeadraceError as error:
        return error.code
    return ErrorCode.NONE
