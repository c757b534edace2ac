"""DescribeGroups, ListGroups, DeleteGroups and OffsetDelete.

- DescribeGroups returns classic groups with their members, and subscriptions and assignments as the members sent
  them.
- ListGroups returns every group that this broker coordinates and the caller may describe.
- DeleteGroups deletes groups without members, and all their offsets.
- OffsetDelete deletes the committed offsets of partitions to which no member is subscribed.
"""

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows, operations_on
from headrace.broker.handlers.kio_types import NO_ERROR, NO_THROTTLE, GroupId, TopicName, i32, wire_error
from headrace.core.group.coordinator_shard import GroupCoordinatorShard, Outcomes
from headrace.core.group.errors import GroupNotFound, InvalidGroupId
from headrace.core.group.model import ClassicGroup, GroupState
from headrace.model.errors import ErrorCode, GroupDenied, HeadraceError, TopicDenied, UnknownTopic
from headrace.model.ids import TopicPartition
from headrace.protocol.api import ApiKey
from headrace.security.authorization import Operation, ResourceType, access_for

DESCRIBE_GROUPS_DESCRIBE_GROUP = access_for(ApiKey.DESCRIBE_GROUPS, ResourceType.GROUP, Operation.DESCRIBE)

NOT_FOUND_FROM = 6  # older clients recognize an absent group by its state
NOT_ASKED = -(2**31)


async def handle_describe_groups(request: DescribeGroupsRequest, call: RequestContext) -> DescribeGroupsResponse:
    rows = [await _row(group_id, request.include_authorized_operations, call) for group_id in request.groups]
    return DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(rows))


async def _row(group_id: str, with_operations: bool, call: RequestContext) -> DescribedGroup:
    try:
        if not allows(call, DESCRIBE_GROUPS_DESCRIBE_GROUP, group_id):
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


def _found(group_id: str, machine: GroupCoordinatorShard) -> ClassicGroup:
    group = machine.classic.get(group_id)
    if group is not None:
        return group
    if machine.family_of(group_id) is None and machine.offsets.holds(group_id):
        return ClassicGroup(group_id=group_id)  # offsets only; no member has ever joined
    raise GroupNotFound(f"Group {group_id} not found.")


def _described(group: ClassicGroup, operations: int) -> DescribedGroup:
    # Until the new generation is assigned, assignments are about to change and are not returned.
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


DESCRIBE_CLUSTER = access_for(ApiKey.LIST_GROUPS, ResourceType.CLUSTER, Operation.DESCRIBE)
LIST_GROUPS_DESCRIBE_GROUP = access_for(ApiKey.LIST_GROUPS, ResourceType.GROUP, Operation.DESCRIBE)


async def handle_list_groups(request: ListGroupsRequest, call: RequestContext) -> ListGroupsResponse:
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
        and (sees_all or allows(call, LIST_GROUPS_DESCRIBE_GROUP, listing.group_id))
    )
    return ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=NO_ERROR, groups=rows)


DELETE_GROUPS_DELETE_GROUP = access_for(ApiKey.DELETE_GROUPS, ResourceType.GROUP, Operation.DELETE)


async def handle_delete_groups(request: DeleteGroupsRequest, call: RequestContext) -> DeleteGroupsResponse:
    rows = []
    for group_id in dict.fromkeys(request.groups_names):
        error_code = wire_error(await _deleted(group_id, call))
        rows.append(DeletableGroupResult(group_id=GroupId(group_id), error_code=error_code))
    return DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=tuple(rows))


async def _deleted(group_id: str, call: RequestContext) -> ErrorCode:
    try:
        if not allows(call, DELETE_GROUPS_DELETE_GROUP, group_id):
            raise GroupDenied(f"no access to group {group_id}")
        if not group_id:
            raise InvalidGroupId("a group has a name")
        await call.broker.groups.call(group_id, lambda machine, ticket, now: machine.delete(group_id, ticket))
    except HeadraceError as error:
        return error.code
    return ErrorCode.NONE


OFFSET_DELETE_DELETE_GROUP = access_for(ApiKey.OFFSET_DELETE, ResourceType.GROUP, Operation.DELETE)
READ_TOPIC = access_for(ApiKey.OFFSET_DELETE, ResourceType.TOPIC, Operation.READ)


async def handle_offset_delete(request: OffsetDeleteRequest, call: RequestContext) -> OffsetDeleteResponse:
    try:
        outcomes = await _outcomes(request, call)
    except HeadraceError as error:
        return OffsetDeleteResponse(error_code=wire_error(error.code), throttle_time=NO_THROTTLE, topics=())
    topics = tuple(
        OffsetDeleteResponseTopic(
            name=TopicName(topic.name),
            partitions=tuple(
                OffsetDeleteResponsePartition(
                    partition_index=i32(one.partition_index),
                    error_code=wire_error(_code(outcomes[TopicPartition(topic.name, one.partition_index)])),
                )
                for one in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return OffsetDeleteResponse(error_code=NO_ERROR, throttle_time=NO_THROTTLE, topics=topics)


async def _outcomes(request: OffsetDeleteRequest, call: RequestContext) -> Outcomes:
    group_id = request.group_id
    if not allows(call, OFFSET_DELETE_DELETE_GROUP, group_id):
        raise GroupDenied(f"no access to group {group_id}")
    if not group_id:
        raise InvalidGroupId("a group has a name")
    outcomes: Outcomes = {}
    wanted = []
    for topic in request.topics:
        for one in topic.partitions:
            partition = TopicPartition(topic.name, one.partition_index)
            outcomes[partition] = refusal = _refusal(partition, call)
            if refusal is None:
                wanted.append(partition)
    decided: Outcomes = await call.broker.groups.call(
        group_id, lambda machine, ticket, now: machine.forget_offsets(group_id, wanted, ticket)
    )
    return outcomes | decided


def _refusal(partition: TopicPartition, call: RequestContext) -> HeadraceError | None:
    if not allows(call, READ_TOPIC, partition.topic):
        return TopicDenied(f"no access to topic {partition.topic}")
    topic = call.broker.image.topics.get(partition.topic)
    if topic is None or not 0 <= partition.partition < len(topic.partitions):
        return UnknownTopic(f"there is no partition {partition}")
    return None


def _code(outcome: HeadraceError | None) -> int:
    return ErrorCode.NONE if outcome is None else outcome.code
