"""DeleteRecords: a partition's start moves forward; what lies before it is gone for every reader at once."""

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, i64, milliseconds, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.internal_topics import INTERNAL_TOPICS
from headrace.model.errors import HeadraceError, InvalidTopic, PolicyViolation, TopicDenied
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DELETE_TOPIC = access_for(ApiKey.DELETE_RECORDS, ResourceType.TOPIC, Operation.DELETE)

NO_LOW_WATERMARK = -1


async def handle(request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    allowed = [topic for topic in request.topics if allows(call, DELETE_TOPIC, topic.name)]
    # A record that was acknowledged can be deleted, though its commit may still be on the way.
    places = [(topic.name, asked.partition_index) for topic in allowed for asked in topic.partitions]
    await call.broker.partitions.settled(places, milliseconds(request.timeout))
    topics = tuple(
        DeleteRecordsTopicResult(
            name=topic.name, partitions=tuple(_row(topic.name, partition, call) for partition in topic.partitions)
        )
        for topic in request.topics
    )
    return DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=topics)


def _row(topic: str, asked: DeleteRecordsPartition, call: Call) -> DeleteRecordsPartitionResult:
    error, low_watermark = NO_ERROR, NO_LOW_WATERMARK
    try:
        low_watermark = _delete(topic, asked, call)
    except HeadraceError as refusal:
        error = wire_error(refusal.code)
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=i64(low_watermark), error_code=error
    )


def _delete(topic: str, asked: DeleteRecordsPartition, call: Call) -> int:
    if not allows(call, DELETE_TOPIC, topic):
        raise TopicDenied(f"records of {topic} may not be deleted by {call.principal}")
    if topic in INTERNAL_TOPICS:
        raise InvalidTopic(f"records of the internal topic {topic} cannot be deleted")
    partition = call.broker.partitions.get(topic, asked.partition_index)
    partition.check_leader()
    if not partition.log.config.deletes:
        raise PolicyViolation(f"{partition} is compacted only: its records go by key, not by offset")
    return partition.delete_records(asked.offset)
