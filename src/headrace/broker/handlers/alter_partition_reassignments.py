"""AlterPartitionReassignments: replicas on the way to other brokers. It is done when they are in sync there."""

from collections.abc import Iterable

from kio.schema.alter_partition_reassignments.v1.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
)
from kio.schema.alter_partition_reassignments.v1.response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_THROTTLE, TopicName, wire_error
from headrace.broker.handlers.shared import allows, repeated
from headrace.broker.handlers.topic_rows import CLUSTER_DENIED, Outcome, encoded_topics, partition_state
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.reassignment import is_moving
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

ALTER_CLUSTER = access_for(ApiKey.ALTER_PARTITION_REASSIGNMENTS, ResourceType.CLUSTER, Operation.ALTER)

Topics = Iterable[tuple[str, Iterable[ReassignablePartitionResponse]]]

DONE = Outcome(ErrorCode.NONE)
NONE_IN_PROGRESS = Outcome(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being reassigned")


async def handle(request: AlterPartitionReassignmentsRequest, call: Call) -> AlterPartitionReassignmentsResponse:
    whole = DONE if allows(call, ALTER_CLUSTER) else CLUSTER_DENIED
    topics = _refused(request, whole) if whole.code else await _reassigned(request, call)
    return AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=wire_error(whole.code),
        error_message=whole.message,
        responses=await encoded_topics(topics, _topic_row, "responses.partitions", call),
    )


def _refused(request: AlterPartitionReassignmentsRequest, refusal: Outcome) -> Topics:
    for topic in request.topics:
        yield topic.name, (_row(asked, refusal) for asked in topic.partitions)


async def _reassigned(request: AlterPartitionReassignmentsRequest, call: Call) -> Topics:
    same_count = not request.allow_replication_factor_change
    image = call.broker.image
    outcomes = {
        (topic.name, asked.partition_index): _reassign(topic.name, asked, same_count, image)
        for topic in request.topics
        for asked in topic.partitions
    }
    wanted: dict[str, dict[int, tuple[int, ...] | None]] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            if not outcomes[topic.name, asked.partition_index].code:
                wanted.setdefault(topic.name, {})[asked.partition_index] = asked.replicas
    if wanted:
        await call.broker.controller.states.reassign(wanted)
    return (
        (topic.name, (_row(asked, outcomes[topic.name, asked.partition_index]) for asked in topic.partitions))
        for topic in request.topics
    )


def _reassign(topic: str, asked: ReassignablePartition, same_count: bool, image: ClusterImage) -> Outcome:
    state = partition_state(image, topic, asked.partition_index)
    if state is None:
        message = f"there is no partition {topic}-{asked.partition_index}"
        return Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if asked.replicas is None:
        return DONE if is_moving(state) else NONE_IN_PROGRESS
    settled = tuple(one for one in state.replicas if one not in state.adding)
    return _placed(asked.replicas, settled, same_count, image)


def _placed(wanted: tuple[int, ...], current: tuple[int, ...], same_count: bool, image: ClusterImage) -> Outcome:
    impossible = _impossible(wanted, image)
    if impossible is not None:
        return Outcome(ErrorCode.INVALID_REPLICA_ASSIGNMENT, impossible)
    if same_count and len(wanted) != len(current):
        message = f"the partition has {len(current)} replicas, and {len(wanted)} are wanted"
        return Outcome(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    return DONE


def _impossible(wanted: tuple[int, ...], image: ClusterImage) -> str | None:
    if not wanted:
        return "a partition needs at least one broker"
    live = image.live_brokers()
    unknown = [broker for broker in wanted if broker not in live]
    if unknown:
        # Also one that is known but away: whoever was promised a move there might wait for it forever.
        return f"no broker that is there has the id {unknown[0]}"
    return "a broker cannot hold two replicas of one partition" if repeated(wanted) else None


def _row(asked: ReassignablePartition, outcome: Outcome) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=asked.partition_index, error_code=wire_error(outcome.code), error_message=outcome.message
    )


def _topic_row(name: str, partitions: tuple[ReassignablePartitionResponse, ...]) -> ReassignableTopicResponse:
    return ReassignableTopicResponse(name=TopicName(name), partitions=partitions)
