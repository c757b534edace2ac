"""ListPartitionReassignments: which replicas are on the way, of all topics or of those that are asked about."""

from collections.abc import Iterable

from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.list_partition_reassignments.v0.response import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_THROTTLE, BrokerId, TopicName, i32, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.handlers.topic_rows import CLUSTER_DENIED, Outcome
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.reassignment import is_moving
from headrace.core.cluster.values import PartitionState
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_CLUSTER = access_for(ApiKey.LIST_PARTITION_REASSIGNMENTS, ResourceType.CLUSTER, Operation.DESCRIBE)


async def handle(request: ListPartitionReassignmentsRequest, call: Call) -> ListPartitionReassignmentsResponse:
    outcome = Outcome(ErrorCode.NONE) if allows(call, DESCRIBE_CLUSTER) else CLUSTER_DENIED
    return ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        error_code=wire_error(outcome.code),
        error_message=outcome.message,
        topics=() if outcome.code else tuple(_topics(request, call.broker.image)),
    )


def _topics(request: ListPartitionReassignmentsRequest, image: ClusterImage) -> Iterable[OngoingTopicReassignment]:
    asked: dict[str, set[int]] | None = None
    if request.topics is not None:
        asked = {one.name: set(one.partition_indexes) for one in request.topics}
    for name, topic in image.topics.items():
        if asked is not None and name not in asked:
            continue
        rows = tuple(
            _row(index, state)
            for index, state in enumerate(topic.partitions)
            if is_moving(state) and (asked is None or index in asked[name])
        )
        if rows:
            yield OngoingTopicReassignment(name=TopicName(name), partitions=rows)


def _row(index: int, state: PartitionState) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=i32(index),
        replicas=tuple(map(BrokerId, state.replicas)),
        adding_replicas=tuple(map(BrokerId, state.adding)),
        removing_replicas=tuple(map(BrokerId, state.removing)),
    )
