"""ElectLeaders, truthfully for one node: nobody else can lead, so an election is either not needed or not possible."""

from collections.abc import Iterable
from enum import IntEnum

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse, PartitionResult, ReplicaElectionResult

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_THROTTLE, TopicName, i32, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.handlers.topic_rows import CLUSTER_DENIED, Outcome, encoded_topics, partition_state
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.values import NO_LEADER
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

ALTER_CLUSTER = access_for(ApiKey.ELECT_LEADERS, ResourceType.CLUSTER, Operation.ALTER)


class ElectionType(IntEnum):
    PREFERRED = 0  # the first replica takes over
    UNCLEAN = 1  # a partition without a leader gets one, even one that lacks records


ELECTION_TYPES = frozenset(map(int, ElectionType))

Topics = Iterable[tuple[str, Iterable[PartitionResult | None]]]

ACCEPTED = Outcome(ErrorCode.NONE)
NOT_NEEDED = Outcome(ErrorCode.ELECTION_NOT_NEEDED, "the partition has that leader already")
NOT_AVAILABLE = {
    ElectionType.PREFERRED: Outcome(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "the first replica cannot lead now"),
    ElectionType.UNCLEAN: Outcome(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica can lead now"),
}


async def handle(request: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    whole = _whole_outcome(request, call)
    topics = _refused(request, whole) if whole.code else _elected(request, call.broker.image)
    return ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=wire_error(whole.code),
        replica_election_results=await encoded_topics(
            topics, _topic_row, "replica_election_results.partition_result", call
        ),
    )


def _whole_outcome(request: ElectLeadersRequest, call: Call) -> Outcome:
    if not allows(call, ALTER_CLUSTER):
        return CLUSTER_DENIED
    if request.election_type not in ELECTION_TYPES:
        return Outcome(ErrorCode.INVALID_REQUEST, f"there is no election of type {request.election_type}")
    return ACCEPTED


def _refused(request: ElectLeadersRequest, refusal: Outcome) -> Topics:
    """The refusal in every row too: the first version has no other place for it."""
    for topic in request.topic_partitions or ():
        yield topic.topic, (_row(index, refusal) for index in topic.partitions)


def _elected(request: ElectLeadersRequest, image: ClusterImage) -> Topics:
    wanted = ElectionType(request.election_type)
    if request.topic_partitions is None:
        for name, known in list(image.topics.items()):
            indexes = range(len(known.partitions))
            yield name, (_unless_not_needed(index, _elect(name, index, wanted, image)) for index in indexes)
        return
    for asked in request.topic_partitions:
        name = asked.topic
        yield name, (_row(index, _elect(name, index, wanted, image)) for index in asked.partitions)


def _unless_not_needed(index: int, outcome: Outcome) -> PartitionResult | None:
    """Who asks about everything hears only of partitions that do not have the wanted leader."""
    return None if outcome is NOT_NEEDED else _row(index, outcome)


def _elect(topic: str, index: int, wanted: ElectionType, image: ClusterImage) -> Outcome:
    state = partition_state(image, topic, index)
    if state is None:
        return Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
    content = state.leader == state.replicas[0] if wanted is ElectionType.PREFERRED else state.leader != NO_LEADER
    return NOT_NEEDED if content else NOT_AVAILABLE[wanted]


def _row(index: int, outcome: Outcome) -> PartitionResult:
    return PartitionResult(partition_id=i32(index), error_code=wire_error(outcome.code), error_message=outcome.message)


def _topic_row(name: str, partitions: tuple[PartitionResult, ...]) -> ReplicaElectionResult:
    return ReplicaElectionResult(topic=TopicName(name), partition_result=partitions)
