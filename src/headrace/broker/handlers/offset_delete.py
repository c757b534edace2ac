"""OffsetDelete: forget how far a group has got in partitions that none of its members reads."""

from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, TopicName, i32, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.group.errors import InvalidGroupId
from headrace.core.group.machine import Outcomes
from headrace.model.errors import ErrorCode, GroupDenied, HeadraceError, TopicDenied, UnknownTopic
from headrace.model.ids import TopicPartition
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DELETE_GROUP = access_for(ApiKey.OFFSET_DELETE, ResourceType.GROUP, Operation.DELETE)
READ_TOPIC = access_for(ApiKey.OFFSET_DELETE, ResourceType.TOPIC, Operation.READ)


async def handle(request: OffsetDeleteRequest, call: Call) -> OffsetDeleteResponse:
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


async def _outcomes(request: OffsetDeleteRequest, call: Call) -> Outcomes:
    group_id = request.group_id
    if not allows(call, DELETE_GROUP, group_id):
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


def _refusal(partition: TopicPartition, call: Call) -> HeadraceError | None:
    if not allows(call, READ_TOPIC, partition.topic):
        return TopicDenied(f"no access to topic {partition.topic}")
    topic = call.broker.image.topics.get(partition.topic)
    if topic is None or not 0 <= partition.partition < len(topic.partitions):
        return UnknownTopic(f"there is no partition {partition}")
    return None


def _code(outcome: HeadraceError | None) -> int:
    return ErrorCode.NONE if outcome is None else outcome.code
