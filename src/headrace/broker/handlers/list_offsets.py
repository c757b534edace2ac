"""ListOffsets: where a partition begins and ends, and where a moment in time lies in it."""

from headrace.broker.call import Call
from headrace.broker.handlers.shared import allows, repeated
from headrace.broker.partition import Partition
from headrace.broker.partitions import SETTLE_MS_MAX
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.protocol.list_offsets import (
    CONSUMER,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    SPECIAL_TIMES_FROM,
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionAnswer,
    PartitionQuery,
)
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_TOPIC = access_for(ApiKey.LIST_OFFSETS, ResourceType.TOPIC, Operation.DESCRIBE)


async def handle(request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    twice = repeated((topic.name, query.partition) for topic in request.topics for query in topic.partitions)
    allowed = {topic.name for topic in request.topics if allows(call, DESCRIBE_TOPIC, topic.name)}
    if request.replica_id == CONSUMER:
        # Whoever was told that a record is written, with whatever acks, finds it counted here.
        places = [(topic.name, one.partition) for topic in request.topics for one in topic.partitions]
        await call.broker.partitions.settled([place for place in places if place[0] in allowed], _patience_ms(request))
    topics = []
    for topic in request.topics:
        if topic.name in allowed:
            answers = [
                _answer(topic.name, query, request, call)
                if (topic.name, query.partition) not in twice
                else PartitionAnswer(query.partition, ErrorCode.INVALID_REQUEST)
                for query in topic.partitions
            ]
        else:
            answers = [
                PartitionAnswer(query.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for query in topic.partitions
            ]
        topics.append((topic.name, answers))
    return ListOffsetsResponse(topics)


def _patience_ms(request: ListOffsetsRequest) -> int:
    """Older clients do not say how long they wait."""
    return request.timeout_ms or SETTLE_MS_MAX


def _answer(topic: str, query: PartitionQuery, request: ListOffsetsRequest, call: Call) -> PartitionAnswer:
    if query.timestamp < 0 and call.api_version < SPECIAL_TIMES_FROM.get(query.timestamp, call.api_version + 1):
        return PartitionAnswer(query.partition, ErrorCode.UNSUPPORTED_VERSION)
    try:
        partition = call.broker.partitions.get(topic, query.partition)
        partition.check_leader(query.current_leader_epoch)
        return _find(partition, query, _end_for(partition, request))
    except HeadraceError as error:
        return PartitionAnswer(query.partition, error.code)


def _end_for(partition: Partition, request: ListOffsetsRequest) -> int:
    """How far the asker can read: clients to what is committed, replicas to the end of the log."""
    if request.replica_id != CONSUMER:
        return partition.log_end_offset
    return partition.last_stable_offset if request.read_committed else partition.high_watermark


def _find(partition: Partition, query: PartitionQuery, end: int) -> PartitionAnswer:
    nothing = PartitionAnswer(query.partition)
    match query.timestamp:
        case t if t == LATEST:
            return nothing._replace(offset=end, leader_epoch=partition.leader_epoch)
        case t if t in (EARLIEST, EARLIEST_LOCAL):
            start = partition.log_start_offset
            return nothing._replace(offset=start, leader_epoch=partition.log.epochs.epoch_of(start))
        case t if t in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return nothing  # no offset has ever left for remote storage, and none waits to leave
        case t if t == MAX_TIMESTAMP:
            found = partition.offset_of_max_timestamp()
        case timestamp:
            found = partition.offset_for_timestamp(timestamp)
    if found is None or found.offset >= end:
        return nothing
    return nothing._replace(timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch)
