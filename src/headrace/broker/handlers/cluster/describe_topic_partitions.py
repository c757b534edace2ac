"""DescribeTopicPartitions: paged metadata. The Java admin client sends it in preference to Metadata."""

from collections.abc import Iterator

from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
from kio.schema.describe_topic_partitions.v0.response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows, operations_on
from headrace.broker.handlers.cluster.cluster_view import View, offline_replicas
from headrace.broker.handlers.cluster.metadata import view_of
from headrace.broker.handlers.kio_types import NO_ERROR, NO_THROTTLE, BrokerId, TopicName, i32, wire_error
from headrace.core.image.model import NO_LEADER, PartitionRegistration, TopicImage
from headrace.core.topic import INTERNAL_TOPICS, check_topic_name
from headrace.model.errors import ErrorCode, InvalidTopic, RequestError
from headrace.protocol.api import ApiKey
from headrace.security.authorization import Operation, ResourceType, access_for

DESCRIBE_TOPIC = access_for(ApiKey.DESCRIBE_TOPIC_PARTITIONS, ResourceType.TOPIC, Operation.DESCRIBE)


async def handle_describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, call: RequestContext
) -> DescribeTopicPartitionsResponse:
    try:
        names, denied = _page(request, call)
    except RequestError as error:
        refused = tuple(_failed(topic.name, error.code) for topic in request.topics)
        return DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=refused)
    view = view_of(tuple(call.broker.image.brokers.values()), call.listener)
    limit = call.broker.settings.integer("max.request.partition.size.limit")
    room = max(1, min(limit, request.response_partition_limit))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor = None
    for name in names:
        if room == 0:
            next_cursor = _cursor(name, 0)
            break
        topic = call.broker.image.topics.get(name)
        if topic is None:
            topics.append(_failed(name, _why_missing(name)))
            continue
        first = request.cursor.partition_index if request.cursor and request.cursor.topic_name == name else 0
        end = min(len(topic.partitions), first + room)
        topics.append(_described(topic, range(first, end), view, call))
        if end < len(topic.partitions):
            next_cursor = _cursor(name, end)
            break
        room -= max(0, end - first)
    topics += [_failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in denied]
    return DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=next_cursor)


def _page(request: DescribeTopicPartitionsRequest, call: RequestContext) -> tuple[Iterator[str], list[str]]:
    """Returns the names from the cursor on, sorted, that the caller may describe; and the denied requested ones."""
    asked = {topic.name for topic in request.topics}
    cursor = request.cursor
    if cursor is not None:
        if cursor.partition_index < 0:
            raise RequestError(f"the cursor's partition {cursor.partition_index} does not exist")
        if asked and cursor.topic_name not in asked:
            raise RequestError(f"the cursor's topic {cursor.topic_name} is not among the requested topics")
    start = cursor.topic_name if cursor is not None else ""
    candidates = sorted(name for name in (asked or call.broker.image.topics) if name >= start)
    denied = [name for name in candidates if asked and not allows(call, DESCRIBE_TOPIC, name)]
    return (name for name in candidates if allows(call, DESCRIBE_TOPIC, name)), denied


def _why_missing(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except InvalidTopic as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _cursor(name: str, partition: int) -> Cursor:
    return Cursor(topic_name=TopicName(name), partition_index=i32(partition))


def _failed(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=wire_error(error),
        name=TopicName(name),
        topic_id=None,
        is_internal=name in INTERNAL_TOPICS,
        partitions=(),
    )


def _described(
    topic: TopicImage, indexes: range, view: View, call: RequestContext
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=NO_ERROR,
        name=TopicName(topic.name),
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(_partition(index, topic.partitions[index], view) for index in indexes),
        topic_authorized_operations=i32(operations_on(call, ResourceType.TOPIC, topic.name)),
    )


def _partition(index: int, state: PartitionRegistration, view: View) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=NO_ERROR,
        partition_index=i32(index),
        leader_id=BrokerId(state.leader if state.leader in view.reachable else NO_LEADER),
        leader_epoch=i32(state.leader_epoch),
        replica_nodes=_brokers(state.replicas),
        isr_nodes=_brokers(state.isr),
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=_brokers(offline_replicas(state, view)),
    )


def _brokers(ids: tuple[int, ...]) -> "tuple[BrokerId, ...]":
    return tuple(map(BrokerId, ids))
