"""ConsumerGroupDescribe: a group of the new protocol with its members, what they have and what they should have."""

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_describe.v1.response import (
    Assignment,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, GroupId, TopicName, error_of, i8, i32
from headrace.broker.handlers.shared import allows, operations_on
from headrace.core.group.machine import GroupMachine
from headrace.core.group.modern.group import Group
from headrace.core.group.modern.groups import consumer_groups
from headrace.core.group.modern.heartbeat import preferred_assignor
from headrace.core.group.modern.values import Partitions
from headrace.model.errors import GroupDenied, HeadraceError, TopicDenied
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_GROUP = access_for(ApiKey.CONSUMER_GROUP_DESCRIBE, ResourceType.GROUP, Operation.DESCRIBE)
DESCRIBE_TOPIC = access_for(ApiKey.CONSUMER_GROUP_DESCRIBE, ResourceType.TOPIC, Operation.DESCRIBE)

NOT_ASKED = -(2**31)
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


async def handle(request: ConsumerGroupDescribeRequest, call: Call) -> ConsumerGroupDescribeResponse:
    with_operations = request.include_authorized_operations
    return ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple([await _described(group_id, with_operations, call) for group_id in request.group_ids]),
    )


async def _described(group_id: str, with_operations: bool, call: Call) -> DescribedGroup:
    try:
        if not allows(call, DESCRIBE_GROUP, group_id):
            raise GroupDenied(f"no access to group {group_id}")
        operations = operations_on(call, ResourceType.GROUP, group_id) if with_operations else NOT_ASKED
        group, assignor = await call.broker.groups.ask(group_id, lambda machine: _seen(machine, group_id))
        if not all(allows(call, DESCRIBE_TOPIC, name) for name in group.subscribed_topics()):
            raise TopicDenied("the group reads topics to which there is no access")
        return _row(group, assignor, operations, call)
    except HeadraceError as error:
        code, message = error_of(error)
        return DescribedGroup(
            error_code=code,
            error_message=message,
            group_id=GroupId(group_id),
            group_state="",
            group_epoch=i32(0),
            assignment_epoch=i32(0),
            assignor_name="",
            members=(),
            authorized_operations=i32(NOT_ASKED),
        )


def _seen(machine: GroupMachine, group_id: str) -> tuple[Group, str]:
    """The group as it is now, and as it stays while the answer waits for what was written about it."""
    groups = consumer_groups(machine)
    group = groups.get(group_id)
    return group.copy(), preferred_assignor(group, groups.rules_of(group_id))


def _row(group: Group, assignor: str, operations: int, call: Call) -> DescribedGroup:
    return DescribedGroup(
        error_code=NO_ERROR,
        error_message=None,
        group_id=GroupId(group.group_id),
        group_state=group.state,
        group_epoch=i32(group.epoch),
        assignment_epoch=i32(group.target_epoch),
        assignor_name=assignor,
        members=tuple(_member(group, member_id, call) for member_id in sorted(group.subscriptions)),
        authorized_operations=i32(operations),
    )


def _member(group: Group, member_id: str, call: Call) -> Member:
    subscription, holding = group.subscriptions[member_id], group.holding(member_id)
    return Member(
        member_id=member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=i32(holding.epoch),
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=tuple(map(TopicName, subscription.topics)),
        subscribed_topic_regex=subscription.regex,
        assignment=_assignment(holding.assigned, call),
        target_assignment=_assignment(group.target(member_id), call),
        member_type=i8(CONSUMER_MEMBER if subscription.classic is None else CLASSIC_MEMBER),
    )


def _assignment(partitions: Partitions, call: Call) -> Assignment:
    names = call.broker.image.topic_ids
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(
                topic_id=topic_id,
                topic_name=TopicName(names[topic_id]),
                partitions=tuple(map(i32, sorted(indexes))),
            )
            for topic_id, indexes in sorted(partitions.items())
            if topic_id in names  # a topic that is gone has no name to show
        )
    )
