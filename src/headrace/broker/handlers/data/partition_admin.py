"""DeleteRecords, OffsetForLeaderEpoch and DescribeProducers.

- DeleteRecords advances the log start offset of partitions. The response is sent when the logs of all in-sync
  replicas start there: a new leader must not serve deleted records.
- OffsetForLeaderEpoch returns the end offset of an epoch, with which consumers and followers detect a truncated log.
- DescribeProducers returns the idempotent producers of a partition and their open transactions.
"""

import asyncio

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.describe_producers.v0.response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest, OffsetForLeaderPartition
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows
from headrace.broker.handlers.kio_types import (
    NO_ERROR,
    NO_THROTTLE,
    ProducerId,
    error_of,
    i32,
    i64,
    milliseconds,
    wire_error,
)
from headrace.broker.replica.partition import Partition
from headrace.core.topic import INTERNAL_TOPICS, check_topic_name
from headrace.model.errors import ErrorCode, HeadraceError, InvalidTopic, PolicyViolation, StorageError, TopicDenied
from headrace.protocol.api import ApiKey
from headrace.security.authorization import Operation, ResourceType, access_for
from headrace.storage.producer.producer_state_entry import ProducerStateEntry

DELETE_TOPIC = access_for(ApiKey.DELETE_RECORDS, ResourceType.TOPIC, Operation.DELETE)

NO_LOW_WATERMARK = -1
# As for a delayed Fetch: bounds how long a request is kept, independent of the client's timeout.
WAIT_MS_MAX = 5 * 60 * 1000

Deletion = tuple[Partition, int] | HeadraceError  # with the log start offset that every in-sync replica has to reach


async def handle_delete_records(request: DeleteRecordsRequest, call: RequestContext) -> DeleteRecordsResponse:
    allowed = [topic for topic in request.topics if allows(call, DELETE_TOPIC, topic.name)]
    # An acknowledged record can be deleted, although its commit may still be in flight.
    places = [(topic.name, asked.partition_index) for topic in allowed for asked in topic.partitions]
    loop = asyncio.get_running_loop()
    until = loop.time() + min(max(milliseconds(request.timeout), 0), WAIT_MS_MAX) / 1000
    await call.broker.partitions.settled(places, milliseconds(request.timeout))
    # All deletions start before one of them is awaited, so that followers receive them at the same time.
    deletions = [[_begin(topic.name, asked, call) for asked in topic.partitions] for topic in request.topics]
    failure = await _make_durable([one for begun in deletions for one in begun], call)
    topics = []
    for topic, begun in zip(request.topics, deletions, strict=True):
        rows = [
            await _delete_records_row(asked, one, failure, until)
            for asked, one in zip(topic.partitions, begun, strict=True)
        ]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=tuple(rows)))
    return DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


async def _make_durable(deletions: list[Deletion], call: RequestContext) -> StorageError | None:
    """Returns the error if the new log starts are in memory only: records may reappear, so the client retries."""
    if all(isinstance(one, HeadraceError) for one in deletions):
        return None
    try:
        await call.broker.partitions.removals.settle_log_starts()
    except StorageError as error:
        return error
    return None


async def _delete_records_row(
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


def _begin(topic: str, asked: DeleteRecordsPartition, call: RequestContext) -> Deletion:
    """Deletes on this broker. Returns the partition and the log start offset that its followers have to reach."""
    try:
        return _delete(topic, asked, call)
    except HeadraceError as refusal:
        return refusal


def _delete(topic: str, asked: DeleteRecordsPartition, call: RequestContext) -> tuple[Partition, int]:
    if not allows(call, DELETE_TOPIC, topic):
        raise TopicDenied(f"records of {topic} may not be deleted by {call.principal}")
    if topic in INTERNAL_TOPICS:
        raise InvalidTopic(f"records of the internal topic {topic} cannot be deleted")
    partition = call.broker.partitions.get(topic, asked.partition_index)
    partition.check_leader()
    if not partition.log.config.deletes:
        raise PolicyViolation(f"{partition} is compacted only: its records go by key, not by offset")
    return partition, partition.delete_records(asked.offset)


DESCRIBE_TOPIC = access_for(ApiKey.OFFSET_FOR_LEADER_EPOCH, ResourceType.TOPIC, Operation.DESCRIBE)
CLUSTER_ACTION = access_for(ApiKey.OFFSET_FOR_LEADER_EPOCH, ResourceType.CLUSTER, Operation.CLUSTER_ACTION)


async def handle_offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, call: RequestContext
) -> OffsetForLeaderEpochResponse:
    topics = []
    for topic in request.topics:
        # Replicas are authorized on the cluster, consumers on the topic.
        allowed = allows(call, CLUSTER_ACTION) or allows(call, DESCRIBE_TOPIC, topic.topic)
        rows = tuple(_offset_for_leader_epoch_row(topic.topic, asked, allowed, call) for asked in topic.partitions)
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows))
    return OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


def _offset_for_leader_epoch_row(
    topic: str, asked: OffsetForLeaderPartition, allowed: bool, call: RequestContext
) -> EpochEndOffset:
    try:
        if not allowed:
            raise TopicDenied(f"{topic} may not be described by {call.principal}")
        partition = call.broker.partitions.get(topic, asked.partition)
        partition.check_leader(asked.current_leader_epoch)
        epoch, end_offset = partition.last_offset_for_leader_epoch(asked.leader_epoch)
    except HeadraceError as error:
        return EpochEndOffset(error_code=wire_error(error.code), partition=asked.partition)
    return EpochEndOffset(
        error_code=NO_ERROR, partition=asked.partition, leader_epoch=i32(epoch), end_offset=i64(end_offset)
    )


READ_TOPIC = access_for(ApiKey.DESCRIBE_PRODUCERS, ResourceType.TOPIC, Operation.READ)

NO_TRANSACTION = -1


async def handle_describe_producers(
    request: DescribeProducersRequest, call: RequestContext
) -> DescribeProducersResponse:
    topics = tuple(
        TopicResponse(
            name=topic.name,
            partitions=tuple(_partition(topic.name, partition, call) for partition in topic.partition_indexes),
        )
        for topic in request.topics
    )
    return DescribeProducersResponse(throttle_time=NO_THROTTLE, topics=topics)


def _partition(topic: str, index: int, call: RequestContext) -> PartitionResponse:
    try:
        check_topic_name(topic)
        if not allows(call, READ_TOPIC, topic):
            raise TopicDenied(f"{topic} may not be read by {call.principal}")
        partition = call.broker.partitions.get(topic, index)
        partition.check_leader()
        producers = tuple(map(_producer, partition.log.producers.active()))
    except HeadraceError as error:
        code, message = error_of(error)
        return PartitionResponse(
            partition_index=i32(index), error_code=code, error_message=message, active_producers=()
        )
    return PartitionResponse(partition_index=i32(index), error_code=NO_ERROR, active_producers=producers)


def _producer(entry: ProducerStateEntry) -> ProducerState:
    open_since = entry.txn_first_offset
    return ProducerState(
        producer_id=ProducerId(entry.producer_id),
        producer_epoch=i32(entry.epoch),
        last_sequence=i32(entry.last_sequence),
        last_timestamp=i64(entry.last_timestamp),
        coordinator_epoch=i32(entry.coordinator_epoch),
        current_txn_start_offset=i64(NO_TRANSACTION if open_since is None else open_since),
    )
