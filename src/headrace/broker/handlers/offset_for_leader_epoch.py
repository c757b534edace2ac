"""OffsetForLeaderEpoch: where an epoch ended, so that readers and followers notice a truncated log."""

from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest, OffsetForLeaderPartition
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, i32, i64, wire_error
from headrace.broker.handlers.shared import allows
from headrace.model.errors import HeadraceError, TopicDenied
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_TOPIC = access_for(ApiKey.OFFSET_FOR_LEADER_EPOCH, ResourceType.TOPIC, Operation.DESCRIBE)
CLUSTER_ACTION = access_for(ApiKey.OFFSET_FOR_LEADER_EPOCH, ResourceType.CLUSTER, Operation.CLUSTER_ACTION)


async def handle(request: OffsetForLeaderEpochRequest, call: Call) -> OffsetForLeaderEpochResponse:
    topics = []
    for topic in request.topics:
        # Replicas come with the cluster's permission, consumers with the topic's.
        allowed = allows(call, CLUSTER_ACTION) or allows(call, DESCRIBE_TOPIC, topic.topic)
        rows = tuple(_row(topic.topic, asked, allowed, call) for asked in topic.partitions)
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows))
    return OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


def _row(topic: str, asked: OffsetForLeaderPartition, allowed: bool, call: Call) -> EpochEndOffset:
    try:
        if not allowed:
            raise TopicDenied(f"{topic} may not be described by {call.principal}")
        partition = call.broker.partitions.get(topic, asked.partition)
        partition.check_leader(asked.current_leader_epoch)
        epoch, end_offset = partition.epoch_end_offset(asked.leader_epoch)
    except HeadraceError as error:
        return EpochEndOffset(error_code=wire_error(error.code), partition=asked.partition)
    return EpochEndOffset(
        error_code=NO_ERROR, partition=asked.partition, leader_epoch=i32(epoch), end_offset=i64(end_offset)
    )
