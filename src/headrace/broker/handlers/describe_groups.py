"""DescribeGroups: classic groups with their members, subscriptions and assignments as the members sent them."""

from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, GroupId, i32, wire_error
from headrace.broker.handlers.shared import allows, operations_on
from headrace.core.group.errors import GroupNotFound
from headrace.core.group.machine import GroupMachine
from headrace.core.group.values import ClassicGroup, GroupState
from headrace.model.errors import ErrorCode, GroupDenied, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_GROUP = access_for(ApiKey.DESCRIBE_GROUPS, ResourceType.GROUP, Operation.DESCRIBE)

NOT_FOUND_FROM = 6  # older clients know an absent group by its state
NOT_ASKED = -(2**31)


async def handle(request: DescribeGroupsRequest, call: Call) -> DescribeGroupsResponse:
    rows = [await _row(group_id, request.include_authorized_operations, call) for group_id in request.groups]
    return DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(rows))


async def _row(group_id: str, with_operations: bool, call: Call) -> DescribedGroup:
    try:
        if not allows(call, DESCRIBE_GROUP, group_id):
            raise GroupDenied(f"no access to group {group_id}")
        group: ClassicGroup = await call.broker.groups.ask(group_id, lambda machine: _found(group_id, machine))
    except GroupNotFound as error:
        if call.api_version < NOT_FOUND_FROM:
            return _without_members(group_id, ErrorCode.NONE, None, GroupState.DEAD)
        return _without_members(group_id, error.code, str(error), GroupState.DEAD)
    except HeadraceError as error:
        return _without_members(group_id, error.code, str(error), "")
    operations = operations_on(call, ResourceType.GROUP, group_id) if with_operations else NOT_ASKED
    return _described(group, operations)


def _found(group_id: str, machine: GroupMachine) -> ClassicGroup:
    group = machine.classic.get(group_id)
    if group is not None:
        return group
    if machine.family_of(group_id) is None and machine.offsets.holds(group_id):
        return ClassicGroup(group_id=group_id)  # offsets under a name that nobody has joined
    raise GroupNotFound(f"Group {group_id} not found.")


def _described(group: ClassicGroup, operations: int) -> DescribedGroup:
    # Before the new generation is shared out, what members have is about to change: nobody is told of it.
    is_settled = group.state is GroupState.STABLE
    members = tuple(
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata_for(group.protocol) if is_settled else b"",
            member_assignment=member.assignment if is_settled else b"",
        )
        for member in group.members.values()
    )
    return DescribedGroup(
        error_code=NO_ERROR,
        error_message=None,
        group_id=GroupId(group.group_id),
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_settled else "",
        members=members,
        authorized_operations=i32(operations),
    )


def _without_members(group_id: str, code: int, message: str | None, state: str) -> DescribedGroup:
    return DescribedGroup(
        error_code=wire_error(code),
        error_message=message,
        group_id=GroupId(group_id),
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=i32(NOT_ASKED),
    )
