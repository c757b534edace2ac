"""DeleteRecords: moves the log start offset of partitions forward.

The response is sent when the logs of all in-sync replicas begin there: a new leader must not serve deleted records.
"""

import asyncio

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, i64, milliseconds, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.partition import Partition
from headrace.core.internal_topics import INTERNAL_TOPICS
from headrace.model.errors import ErrorCode, HeadraceError, InvalidTopic, PolicyViolation, StorageError, TopicDenied
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DELETE_TOPIC = access_for(ApiKey.DELETE_RECORDS, ResourceType.TOPIC, Operation.DELETE)

NO_LOW_WATERMARK = -1
# As for a parked Fetch: bounds how long a request is kept, whatever timeout the client sends.
WAIT_MS_MAX = 5 * 60 * 1000

Deletion = tuple[Partition, int] | HeadraceError  # the offset that the log of every in-sync replica has to begin at


async def handle(request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    allowed = [topic for topic in request.topics if allows(call, DELETE_TOPIC, topic.name)]
    # A record that was acknowledged can be deleted, though its commit may still be on the way.
    places = [(topic.name, asked.partition_index) for topic in allowed for asked in topic.partitions]
    loop = asyncio.get_running_loop()
    until = loop.time() + min(max(milliseconds(request.timeout), 0), WAIT_MS_MAX) / 1000
    await call.broker.partitions.settled(places, milliseconds(request.timeout))
    # All deletions begin before one of them is waited for: followers learn of them at the same time.
    deletions = [[_begin(topic.name, asked, call) for asked in topic.partitions] for topic in request.topics]
    failure = await _make_durable([one for begun in deletions for one in begun], call)
    topics = []
    for topic, begun in zip(request.topics, deletions, strict=True):
        rows = [await _row(asked, one, failure, until) for asked, one in zip(topic.partitions, begun, strict=True)]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=tuple(rows)))
    return DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


async def _make_durable(deletions: list[Deletion], call: Call) -> StorageError | None:
    """Returns the error if the new log starts are in memory only: records may reappear, so the client retries."""
    if all(isinstance(one, HeadraceError) for one in deletions):
        return None
    try:
        await call.broker.partitions.removals.settle_log_starts()
    except StorageError as error:
        return error
    return None


async def _row(
    asked: DeleteRecordsPartition, deletion: Deletion, failure: StorageError | None, until: float
) -> DeleteRecordsPartitionResult:
    error, low_watermark = NO_ERROR, NO_LOW_WATERMARK
    try:
        if isinstance(deletion, HeadraceError):
            raise deletion
        if failure is not None:
            raise failure
        partition, offset = deletion
        async with asyncio.timeout_at(until):
            low_watermark = await partition.deleted_everywhere(offset)
    except TimeoutError:
        error = wire_error(ErrorCode.REQUEST_TIMED_OUT)
    except HeadraceError as refusal:
        error = wire_error(refusal.code)
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=i64(low_watermark), error_code=error
    )


def _begin(topic: str, asked: DeleteRecordsPartition, call: Call) -> Deletion:
    """Deletes on this broker. Returns the partition and the offset that its followers have to reach."""
    try:
        return _delete(topic, asked, call)
    except HeadraceError as refusal:
        return refusal


def _delete(topic: str, asked: DeleteRecordsPartition, call: Call) -> tuple[Partition, int]:
    if not allows(call, DELETE_TOPIC, topic):
        raise TopicDenied(f"records of {topic} may not be deleted by {call.principal}")
    if topic in INTERNAL_TOPICS:
        raise InvalidTopic(f"records of the internal topic {topic} cannot be deleted")
    partition = call.broker.partitions.get(topic, asked.partition_index)
    partition.check_leader()
    if not partition.log.config.deletes:
        raise PolicyViolation(f"{partition} is compacted only: its records go by key, not by offset")
    return partition, partition.delete_records(asked.offset)
