"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders.

- AlterPartitionReassignments starts moves of replicas. A move is complete when the new replicas are in the ISR.
- ListPartitionReassignments returns the moves in progress, of all topics or of the requested ones.
- ElectLeaders elects the preferred leader, or any replica for a partition without a leader, where needed and
  possible.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum

from kio.schema.alter_partition_reassignments.v1.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
)
from kio.schema.alter_partition_reassignments.v1.response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.list_partition_reassignments.v0.response import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows, repeated
from headrace.broker.handlers.kio_types import NO_THROTTLE, BrokerId, TopicName, i32, wire_error
from headrace.broker.handlers.row_encoding import CLUSTER_DENIED, Outcome, encoded_topics, partition_state
from headrace.core.controller.partition_change import is_moving
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import NO_LEADER, PartitionRegistration
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.security.authorization import Operation, ResourceType, access_for

ALTER_PARTITION_REASSIGNMENTS_ALTER_CLUSTER = access_for(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, ResourceType.CLUSTER, Operation.ALTER
)

AlterPartitionReassignmentsTopics = Iterable[tuple[str, Iterable[ReassignablePartitionResponse]]]

DONE = Outcome(ErrorCode.NONE)
NONE_IN_PROGRESS = Outcome(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being reassigned")


async def handle_alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, call: RequestContext
) -> AlterPartitionReassignmentsResponse:
    whole = DONE if allows(call, ALTER_PARTITION_REASSIGNMENTS_ALTER_CLUSTER) else CLUSTER_DENIED
    topics = _alter_partition_reassignments_refused(request, whole) if whole.code else await _reassigned(request, call)
    return AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=wire_error(whole.code),
        error_message=whole.message,
        responses=await encoded_topics(topics, _alter_partition_reassignments_topic_row, "responses.partitions", call),
    )


def _alter_partition_reassignments_refused(
    request: AlterPartitionReassignmentsRequest, refusal: Outcome
) -> AlterPartitionReassignmentsTopics:
    for topic in request.topics:
        yield topic.name, (_alter_partition_reassignments_row(asked, refusal) for asked in topic.partitions)


async def _reassigned(
    request: AlterPartitionReassignmentsRequest, call: RequestContext
) -> AlterPartitionReassignmentsTopics:
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
        (
            topic.name,
            (
                _alter_partition_reassignments_row(asked, outcomes[topic.name, asked.partition_index])
                for asked in topic.partitions
            ),
        )
        for topic in request.topics
    )


def _reassign(topic: str, asked: ReassignablePartition, same_count: bool, image: MetadataImage) -> Outcome:
    state = partition_state(image, topic, asked.partition_index)
    if state is None:
        message = f"there is no partition {topic}-{asked.partition_index}"
        return Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    if asked.replicas is None:
        return DONE if is_moving(state) else NONE_IN_PROGRESS
    settled = tuple(one for one in state.replicas if one not in state.adding)
    return _placed(asked.replicas, settled, same_count, image)


def _placed(wanted: tuple[int, ...], current: tuple[int, ...], same_count: bool, image: MetadataImage) -> Outcome:
    impossible = _impossible(wanted, image)
    if impossible is not None:
        return Outcome(ErrorCode.INVALID_REPLICA_ASSIGNMENT, impossible)
    if same_count and len(wanted) != len(current):
        message = f"the partition has {len(current)} replicas, and {len(wanted)} are wanted"
        return Outcome(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    return DONE


def _impossible(wanted: tuple[int, ...], image: MetadataImage) -> str | None:
    if not wanted:
        return "a partition needs at least one broker"
    live = image.live_brokers()
    unknown = [broker for broker in wanted if broker not in live]
    if unknown:
        # Includes registered brokers without a session: a move to one of them might wait forever.
        return f"no broker that is there has the id {unknown[0]}"
    return "a broker cannot hold two replicas of one partition" if repeated(wanted) else None


def _alter_partition_reassignments_row(asked: ReassignablePartition, outcome: Outcome) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=asked.partition_index, error_code=wire_error(outcome.code), error_message=outcome.message
    )


def _alter_partition_reassignments_topic_row(
    name: str, partitions: tuple[ReassignablePartitionResponse, ...]
) -> ReassignableTopicResponse:
    return ReassignableTopicResponse(name=TopicName(name), partitions=partitions)


DESCRIBE_CLUSTER = access_for(ApiKey.LIST_PARTITION_REASSIGNMENTS, ResourceType.CLUSTER, Operation.DESCRIBE)


async def handle_list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, call: RequestContext
) -> ListPartitionReassignmentsResponse:
    outcome = Outcome(ErrorCode.NONE) if allows(call, DESCRIBE_CLUSTER) else CLUSTER_DENIED
    return ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        error_code=wire_error(outcome.code),
        error_message=outcome.message,
        topics=() if outcome.code else tuple(_topics(request, call.broker.image)),
    )


def _topics(request: ListPartitionReassignmentsRequest, image: MetadataImage) -> Iterable[OngoingTopicReassignment]:
    asked: dict[str, set[int]] | None = None
    if request.topics is not None:
        asked = {one.name: set(one.partition_indexes) for one in request.topics}
    for name, topic in image.topics.items():
        if asked is not None and name not in asked:
            continue
        rows = tuple(
            _list_partition_reassignments_row(index, state)
            for index, state in enumerate(topic.partitions)
            if is_moving(state) and (asked is None or index in asked[name])
        )
        if rows:
            yield OngoingTopicReassignment(name=TopicName(name), partitions=rows)


def _list_partition_reassignments_row(index: int, state: PartitionRegistration) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=i32(index),
        replicas=tuple(map(BrokerId, state.replicas)),
        adding_replicas=tuple(map(BrokerId, state.adding)),
        removing_replicas=tuple(map(BrokerId, state.removing)),
    )


ELECT_LEADERS_ALTER_CLUSTER = access_for(ApiKey.ELECT_LEADERS, ResourceType.CLUSTER, Operation.ALTER)


class ElectionType(IntEnum):
    PREFERRED = 0  # the preferred leader is elected
    UNCLEAN = 1  # a partition without a leader gets one, even one that lacks records


ELECTION_TYPES = frozenset(map(int, ElectionType))

ElectLeadersTopics = Iterable[tuple[str, Iterable[PartitionResult | None]]]

ACCEPTED = Outcome(ErrorCode.NONE)
NOT_NEEDED = Outcome(ErrorCode.ELECTION_NOT_NEEDED, "the partition has that leader already")
NOT_AVAILABLE = {
    ElectionType.PREFERRED: Outcome(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "the first replica cannot lead now"),
    ElectionType.UNCLEAN: Outcome(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica can lead now"),
}


async def handle_elect_leaders(request: ElectLeadersRequest, call: RequestContext) -> ElectLeadersResponse:
    whole = _whole_outcome(request, call)
    topics = _elect_leaders_refused(request, whole) if whole.code else await _elected(request, call)
    return ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=wire_error(whole.code),
        replica_election_results=await encoded_topics(
            topics, _elect_leaders_topic_row, "replica_election_results.partition_result", call
        ),
    )


def _whole_outcome(request: ElectLeadersRequest, call: RequestContext) -> Outcome:
    if not allows(call, ELECT_LEADERS_ALTER_CLUSTER):
        return CLUSTER_DENIED
    if request.election_type not in ELECTION_TYPES:
        return Outcome(ErrorCode.INVALID_REQUEST, f"there is no election of type {request.election_type}")
    return ACCEPTED


def _elect_leaders_refused(request: ElectLeadersRequest, refusal: Outcome) -> ElectLeadersTopics:
    """Returns the error in every row as well: version 0 has no top-level error code."""
    for topic in request.topic_partitions or ():
        yield topic.topic, (_elect_leaders_row(index, refusal) for index in topic.partitions)


async def _elected(request: ElectLeadersRequest, call: RequestContext) -> ElectLeadersTopics:
    """Runs the elections. Rows are built one by one while they are encoded, from the states before the election."""
    wanted = ElectionType(request.election_type)
    image = call.broker.image
    asked = _asked(request, image)
    before = {name: known.partitions for name, _ in asked if (known := image.topics.get(name)) is not None}
    needed = {
        name: [index for index in indexes if _is_needed(before.get(name, ()), index, wanted)] for name, indexes in asked
    }
    needed = {name: indexes for name, indexes in needed.items() if indexes}
    if needed:
        await call.broker.controller.states.elect_leaders(needed, unclean=wanted is ElectionType.UNCLEAN)
    about_all = request.topic_partitions is None

    def outcome(name: str, index: int) -> Outcome:
        if not 0 <= index < len(before.get(name, ())):
            return Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
        if index not in needed.get(name, ()):
            return NOT_NEEDED
        state = partition_state(image, name, index)
        return ACCEPTED if state is not None and _is_content(state, wanted) else NOT_AVAILABLE[wanted]

    return (
        (
            name,
            (
                _unless_not_needed(index, outcome(name, index))
                if about_all
                else _elect_leaders_row(index, outcome(name, index))
                for index in indexes
            ),
        )
        for name, indexes in asked
    )


def _asked(request: ElectLeadersRequest, image: MetadataImage) -> list[tuple[str, Sequence[int]]]:
    if request.topic_partitions is None:
        return [(name, range(len(known.partitions))) for name, known in image.topics.items()]
    return [(one.topic, one.partitions) for one in request.topic_partitions]


def _is_needed(states: Sequence[PartitionRegistration], index: int, wanted: ElectionType) -> bool:
    return 0 <= index < len(states) and not _is_content(states[index], wanted)


def _is_content(state: PartitionRegistration, wanted: ElectionType) -> bool:
    return state.leader == state.replicas[0] if wanted is ElectionType.PREFERRED else state.leader != NO_LEADER


def _unless_not_needed(index: int, outcome: Outcome) -> PartitionResult | None:
    """Returns None for NOT_NEEDED: a request for all partitions lists only those without the requested leader."""
    return None if outcome is NOT_NEEDED else _elect_leaders_row(index, outcome)


def _elect_leaders_row(index: int, outcome: Outcome) -> PartitionResult:
    return PartitionResult(partition_id=i32(index), error_code=wire_error(outcome.code), error_message=outcome.message)


def _elect_leaders_topic_row(name: str, partitions: tuple[PartitionResult, ...]) -> ReplicaElectionResult:
    return ReplicaElectionResult(topic=TopicName(name), partition_result=partitions)
