"""ListOffsets: start and end offsets of partitions, and offsets by timestamp."""

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows, repeated
from headrace.broker.replica.partition import Partition
from headrace.broker.replica.replica_manager import SETTLE_MS_MAX
from headrace.broker.runtime.cooperative import drive
from headrace.broker.runtime.request_threads import RequestThreads
from headrace.model.errors import ErrorCode, HeadraceError, LookupInterrupted
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.list_offsets import (
    CONSUMER,
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    SPECIAL_TIMES_FROM,
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionAnswer,
    PartitionQuery,
)
from headrace.security.authorization import Operation, ResourceType, access_for
from headrace.storage.log_types import TimestampAndOffset
from headrace.storage.segment.index_rebuild import IndexRebuilding

DESCRIBE_TOPIC = access_for(ApiKey.LIST_OFFSETS, ResourceType.TOPIC, Operation.DESCRIBE)

REBUILDS_MAX = 10  # segments whose indexes one look-up finds to be corrupt
# Clients of earlier versions do not support OFFSET_NOT_AVAILABLE; they retry LEADER_NOT_AVAILABLE.
NOT_AVAILABLE_FROM = 5


async def handle_list_offsets(request: ListOffsetsRequest, call: RequestContext) -> ListOffsetsResponse:
    twice = repeated((topic.name, query.partition) for topic in request.topics for query in topic.partitions)
    allowed = {topic.name for topic in request.topics if allows(call, DESCRIBE_TOPIC, topic.name)}
    if request.replica_id == CONSUMER:
        # A record that was acknowledged, with any acks, is included in the response.
        places = [(topic.name, one.partition) for topic in request.topics for one in topic.partitions]
        await call.broker.partitions.settled([place for place in places if place[0] in allowed], _patience_ms(request))
    topics = []
    for topic in request.topics:
        if topic.name in allowed:
            answers = [
                await _answer(topic.name, query, request, call)
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
    """Older clients do not send a timeout."""
    return request.timeout_ms or SETTLE_MS_MAX


async def _answer(
    topic: str, query: PartitionQuery, request: ListOffsetsRequest, call: RequestContext
) -> PartitionAnswer:
    if query.timestamp < 0 and call.api_version < SPECIAL_TIMES_FROM.get(query.timestamp, call.api_version + 1):
        return PartitionAnswer(query.partition, ErrorCode.UNSUPPORTED_VERSION)
    try:
        partition = call.broker.partitions.get(topic, query.partition)
        partition.check_leader(query.current_leader_epoch)
        row = await _find(partition, query, request, call.broker.partitions.threads)
        if row is None:
            return PartitionAnswer(query.partition, _not_available(call.api_version))
        return row
    except HeadraceError as error:
        return PartitionAnswer(query.partition, error.code)


def _end_for(partition: Partition, request: ListOffsetsRequest) -> int:
    """Returns the end offset that is visible to the requester: committed records for clients, the log end for
    replicas.
    """
    if request.replica_id != CONSUMER:
        return partition.log_end_offset
    return partition.last_stable_offset if request.read_committed else partition.high_watermark


def _not_available(version: int) -> ErrorCode:
    return ErrorCode.OFFSET_NOT_AVAILABLE if version >= NOT_AVAILABLE_FROM else ErrorCode.LEADER_NOT_AVAILABLE


async def _find(
    partition: Partition, query: PartitionQuery, request: ListOffsetsRequest, threads: RequestThreads
) -> PartitionAnswer | None:
    """None while the high watermark lags after an election and the offset may lie beyond it (KIP-207)."""
    if query.timestamp >= 0 or query.timestamp == MAX_TIMESTAMP:
        return await _find_by_time(partition, query, request, threads)
    nothing, end = PartitionAnswer(query.partition), _end_for(partition, request)
    is_unknown = request.replica_id == CONSUMER and partition.watermark_lags
    match query.timestamp:
        case t if t == LATEST and is_unknown:
            return None
        case t if t == LATEST:
            return nothing._replace(offset=end, leader_epoch=partition.leader_epoch)
        case t if t in (EARLIEST, EARLIEST_LOCAL):
            start = partition.log_start_offset
            return nothing._replace(offset=start, leader_epoch=partition.log.epochs.epoch_of(start))
        case _:
            return nothing  # nothing has been moved to remote storage, and nothing waits to be


async def _find_by_time(
    partition: Partition, query: PartitionQuery, request: ListOffsetsRequest, threads: RequestThreads
) -> PartitionAnswer | None:
    """Like `_find`, by timestamp; reads records in a thread.

    Raises a retriable error if the leadership has changed during the look-up.
    """
    async with threads.lookups:
        partition.check_leader(query.current_leader_epoch)
        term = partition.term
        found = await _looked_up(partition, query.timestamp)
    partition.check_leader(query.current_leader_epoch)
    if partition.term != term:
        raise LookupInterrupted(f"{partition}: the leader epoch changed during a look-up")
    if found is None or found.offset >= _end_for(partition, request):
        is_unknown = request.replica_id == CONSUMER and partition.watermark_lags
        return None if is_unknown else PartitionAnswer(query.partition)
    return PartitionAnswer(
        query.partition, timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch
    )


async def _looked_up(partition: Partition, timestamp: int) -> TimestampAndOffset | None:
    for _ in range(REBUILDS_MAX):
        try:
            if timestamp == MAX_TIMESTAMP:
                return await drive(partition.offset_of_max_timestamp())
            return await drive(partition.offset_for_timestamp(timestamp))
        except IndexRebuilding as wait:
            await wait.rebuilt()
    raise LookupInterrupted(f"{partition}: indexes of {REBUILDS_MAX} segments were rebuilt during a look-up")
