"""ConsumerGroupHeartbeat: the one request of a member of the new protocol; joining and leaving are heartbeats too."""

from datetime import timedelta
from typing import cast
from uuid import UUID, uuid4

from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest
from kio.schema.consumer_group_heartbeat.v1.response import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from kio.static.primitive import i32Timedelta

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, error_of, i32, milliseconds
from headrace.broker.handlers.shared import allows
from headrace.broker.later import Later
from headrace.core.group.modern.migration import report
from headrace.core.group.modern.values import JOINING, Heartbeat, HeartbeatReply, Partitions
from headrace.model.errors import GroupDenied, HeadraceError, RequestError, TopicDenied, UnsupportedVersion
from headrace.model.ids import ZERO_UUID
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

READ_GROUP = access_for(ApiKey.CONSUMER_GROUP_HEARTBEAT, ResourceType.GROUP, Operation.READ)
DESCRIBE_TOPIC = access_for(ApiKey.CONSUMER_GROUP_HEARTBEAT, ResourceType.TOPIC, Operation.DESCRIBE)

MEMBER_ID_FROM = 1  # KIP-1082: the client makes its own id, so that a lost answer leaves no ghost behind

NO_TIME = cast(i32Timedelta, timedelta(0))


def handle(
    request: ConsumerGroupHeartbeatRequest, call: Call
) -> ConsumerGroupHeartbeatResponse | Later[ConsumerGroupHeartbeatResponse]:
    later = Later(_answered)
    try:
        wish = _checked(request, call)
        call.broker.groups.runtime.submit(
            request.group_id,
            lambda machine, ticket, now: report(
                machine, wish, lambda name: allows(call, DESCRIBE_TOPIC, name), ticket, now
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
        assignment=None if reply.assigned is None else _assignment(reply.assigned),
    )


def _checked(request: ConsumerGroupHeartbeatRequest, call: Call) -> Heartbeat:
    protocols = call.broker.settings.config("group.coordinator.rebalance.protocols")
    if isinstance(protocols, tuple) and "consumer" not in protocols:
        raise UnsupportedVersion("this broker does not offer the new group protocol")
    if not allows(call, READ_GROUP, request.group_id):
        raise GroupDenied(f"no access to group {request.group_id}")
    for name in request.subscribed_topic_names or ():
        if not allows(call, DESCRIBE_TOPIC, name):
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
        client_host=f"/{call.client_host}",  # as Kafka's tools show it
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


def _assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(topic_id=topic_id, partitions=tuple(map(i32, sorted(partitions[topic_id]))))
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
