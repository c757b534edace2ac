"""ListGroups: every group that this broker coordinates and the caller may see."""

from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, GroupId, wire_error
from headrace.broker.handlers.shared import allows
from headrace.model.errors import HeadraceError
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_CLUSTER = access_for(ApiKey.LIST_GROUPS, ResourceType.CLUSTER, Operation.DESCRIBE)
DESCRIBE_GROUP = access_for(ApiKey.LIST_GROUPS, ResourceType.GROUP, Operation.DESCRIBE)


async def handle(request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
    states = {state.casefold() for state in request.states_filter}
    types = {kind.casefold() for kind in request.types_filter}
    sees_all = allows(call, DESCRIBE_CLUSTER)
    try:
        machines = call.broker.groups.machines()
    except HeadraceError as error:
        return ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=wire_error(error.code), groups=())
    rows = tuple(
        ListedGroup(
            group_id=GroupId(listing.group_id),
            protocol_type=listing.protocol_type,
            group_state=listing.state,
            group_type=listing.kind,
        )
        for machine in machines
        for listing in machine.listings()
        if (not states or listing.state.casefold() in states)
        and (not types or listing.kind.casefold() in types)
        and (sees_all or allows(call, DESCRIBE_GROUP, listing.group_id))
    )
    return ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=NO_ERROR, groups=rows)
