"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (consumer protocol).

- ConsumerGroupHeartbeat is the only request of a member: joining and leaving are heartbeats, too.
- ConsumerGroupDescribe returns a group with its members, their current and their target assignments.
"""

from datetime import timedelta
from typing import cast
from uuid import UUID, uuid4

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_describe.v1.response import (
    Assignment as ConsumerGroupDescribeAssignment,
)
from kio.schema.consumer_group_describe.v1.response import (
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)
from kio.schema.consumer_group_describe.v1.response import (
    TopicPartitions as ConsumerGroupDescribeTopicPartitions,
)
from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.consumer_group_heartbeat.v1.response import (
    Assignment as ConsumerGroupHeartbeatAssignment,
)
from kio.schema.consumer_group_heartbeat.v1.response import (
    ConsumerGroupHeartbeatResponse,
)
from kio.schema.consumer_group_heartbeat.v1.response import (
    TopicPartitions as ConsumerGroupHeartbeatTopicPartitions,
)
from kio.static.primitive import i32Timedelta

from headrace.broker.api.context import RequestContext
from headrace.broker.api.deferred import DeferredResponse
from headrace.broker.handlers.access import allows, operations_on
from headrace.broker.handlers.kio_types import (
    NO_ERROR,
    NO_THROTTLE,
    GroupId,
    TopicName,
    error_of,
    i8,
    i32,
    milliseconds,
)
from headrace.core.group.consumer.consumer_group import ConsumerGroup
from headrace.core.group.consumer.heartbeat import preferred_assignor
from headrace.core.group.consumer.manager import consumer_groups
from headrace.core.group.consumer.model import JOINING, Heartbeat, HeartbeatReply, Partitions
from headrace.core.group.consumer.upgrade import report
from headrace.core.group.coordinator_shard import GroupCoordinatorShard
from headrace.model.errors import GroupDenied, HeadraceError, RequestError, TopicDenied, UnsupportedVersion
from headrace.model.ids import ZERO_UUID
from headrace.protocol.api import ApiKey
from headrace.security.authorization import Operation, ResourceType, access_for

READ_GROUP = access_for(ApiKey.CONSUMER_GROUP_HEARTBEAT, ResourceType.GROUP, Operation.READ)
CONSUMER_GROUP_HEARTBEAT_DESCRIBE_TOPIC = access_for(
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ResourceType.TOPIC, Operation.DESCRIBE
)

MEMBER_ID_FROM = 1  # KIP-1082: the client generates its id, so that a lost response leaves no orphaned member

NO_TIME = cast(i32Timedelta, timedelta(0))


def handle_consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, call: RequestContext
) -> ConsumerGroupHeartbeatResponse | DeferredResponse[ConsumerGroupHeartbeatResponse]:
    later = DeferredResponse(_answered)
    try:
        wish = _checked(request, call)
        call.broker.groups.runtime.submit(
            request.group_id,
            lambda machine, ticket, now: report(
                machine, wish, lambda name: allows(call, CONSUMER_GROUP_HEARTBEAT_DESCRIBE_TOPIC, name), ticket, now
            ),
            later.settle,
        )
    except HeadraceError as error:
        return _refused(error)
    return later


def _answered(reply: HeartbeatReply | HeadraceError) -> ConsumerGroupHeartbeatResponse:
    if isinstance(reply, HeadraceError):
        return _refused(reply)
    return ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        error_message=None,
        member_id=reply.member_id,
        member_epoch=i32(reply.epoch),
        heartbeat_interval=cast(i32Timedelta, timedelta(milliseconds=reply.heartbeat_interval_ms)),
        assignment=None if reply.assigned is None else _consumer_group_heartbeat_assignment(reply.assigned),
    )


def _checked(request: ConsumerGroupHeartbeatRequest, call: RequestContext) -> Heartbeat:
    protocols = call.broker.settings.config("group.coordinator.rebalance.protocols")
    if isinstance(protocols, tuple) and "consumer" not in protocols:
        raise UnsupportedVersion("this broker does not offer the new group protocol")
    if not allows(call, READ_GROUP, request.group_id):
        raise GroupDenied(f"no access to group {request.group_id}")
    for name in request.subscribed_topic_names or ():
        if not allows(call, CONSUMER_GROUP_HEARTBEAT_DESCRIBE_TOPIC, name):
            raise TopicDenied(f"no access to topic {name}")
    member_id = request.member_id
    if not member_id and request.member_epoch == JOINING and call.api_version < MEMBER_ID_FROM:
        member_id = str(uuid4())
    return Heartbeat(
        group_id=request.group_id,
        member_id=member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topics=request.subscribed_topic_names,
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=_owned(request),
        client_id=call.client_id,
        client_host=f"/{call.client_host}",  # format of Kafka's tools
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    owned: dict[UUID, frozenset[int]] = {}
    for row in request.topic_partitions:
        topic_id = row.topic_id or ZERO_UUID
        if topic_id in owned:
            raise RequestError(f"topic {topic_id} is named twice among the owned partitions")
        if row.partitions:
            owned[topic_id] = frozenset(row.partitions)
    return owned


def _consumer_group_heartbeat_assignment(partitions: Partitions) -> ConsumerGroupHeartbeatAssignment:
    return ConsumerGroupHeartbeatAssignment(
        topic_partitions=tuple(
            ConsumerGroupHeartbeatTopicPartitions(
                topic_id=topic_id, partitions=tuple(map(i32, sorted(partitions[topic_id])))
            )
            for topic_id in sorted(partitions)
        )
    )


def _refused(error: HeadraceError) -> ConsumerGroupHeartbeatResponse:
    code, message = error_of(error)
    return ConsumerGroupHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        member_id=None,
        member_epoch=i32(0),
        heartbeat_interval=NO_TIME,
        assignment=None,
    )


DESCRIBE_GROUP = access_for(ApiKey.CONSUMER_GROUP_DESCRIBE, ResourceType.GROUP, Operation.DESCRIBE)
CONSUMER_GROUP_DESCRIBE_DESCRIBE_TOPIC = access_for(
    ApiKey.CONSUMER_GROUP_DESCRIBE, ResourceType.TOPIC, Operation.DESCRIBE
)

NOT_ASKED = -(2**31)
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


async def handle_consumer_group_describe(
    request: ConsumerGroupDescribeRequest, call: RequestContext
) -> ConsumerGroupDescribeResponse:
    with_operations = request.include_authorized_operations
    return ConsumerGroupDescribeResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple([await _described(group_id, with_operations, call) for group_id in request.group_ids]),
    )


async def _described(group_id: str, with_operations: bool, call: RequestContext) -> DescribedGroup:
    try:
        if not allows(call, DESCRIBE_GROUP, group_id):
            raise GroupDenied(f"no access to group {group_id}")
        operations = operations_on(call, ResourceType.GROUP, group_id) if with_operations else NOT_ASKED
        group, assignor = await call.broker.groups.ask(group_id, lambda machine: _seen(machine, group_id))
        if not all(allows(call, CONSUMER_GROUP_DESCRIBE_DESCRIBE_TOPIC, name) for name in group.subscribed_topics()):
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


def _seen(machine: GroupCoordinatorShard, group_id: str) -> tuple[ConsumerGroup, str]:
    """Returns a copy, because the group may change while the response waits for the commit of the group's records."""
    groups = consumer_groups(machine)
    group = groups.get(group_id)
    return group.copy(), preferred_assignor(group, groups.rules_of(group_id))


def _row(group: ConsumerGroup, assignor: str, operations: int, call: RequestContext) -> DescribedGroup:
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


def _member(group: ConsumerGroup, member_id: str, call: RequestContext) -> Member:
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
        assignment=_consumer_group_describe_assignment(holding.assigned, call),
        target_assignment=_consumer_group_describe_assignment(group.target(member_id), call),
        member_type=i8(CONSUMER_MEMBER if subscription.classic is None else CLASSIC_MEMBER),
    )


def _consumer_group_describe_assignment(
    partitions: Partitions, call: RequestContext
) -> ConsumerGroupDescribeAssignment:
    names = call.broker.image.topic_ids
    return ConsumerGroupDescribeAssignment(
        topic_partitions=tuple(
            ConsumerGroupDescribeTopicPartitions(
                topic_id=topic_id,
                topic_name=TopicName(names[topic_id]),
                partitions=tuple(map(i32, sorted(indexes))),
            )
            for topic_id, indexes in sorted(partitions.items())
            if topic_id in names  # a deleted topic has no name
        )
    )
