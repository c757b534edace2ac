"""ElectLeaders: the first replica takes over, or anybody where nobody leads; where that is needed, and possible."""

from collections.abc import Iterable, Sequence
from enum import IntEnum

from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse, PartitionResult, ReplicaElectionResult

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_THROTTLE, TopicName, i32, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.handlers.topic_rows import CLUSTER_DENIED, Outcome, encoded_topics, partition_state
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.values import NO_LEADER, PartitionState
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
    topics = _refused(request, whole) if whole.code else await _elected(request, call)
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


async def _elected(request: ElectLeadersRequest, call: Call) -> Topics:
    """Rows are made one by one when they are sent: the states from before the election are kept for them."""
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
                _unless_not_needed(index, outcome(name, index)) if about_all else _row(index, outcome(name, index))
                for index in indexes
            ),
        )
        for name, indexes in asked
    )


def _asked(request: ElectLeadersRequest, image: ClusterImage) -> list[tuple[str, Sequence[int]]]:
    if request.topic_partitions is None:
        return [(name, range(len(known.partitions))) for name, known in image.topics.items()]
    return [(one.topic, one.partitions) for one in request.topic_partitions]


def _is_needed(states: Sequence[PartitionState], index: int, wanted: ElectionType) -> bool:
    return 0 <= index < len(states) and not _is_content(states[index], wanted)


def _is_content(state: PartitionState, wanted: ElectionType) -> bool:
    return state.leader == state.replicas[0] if wanted is ElectionType.PREFERRED else state.leader != NO_LEADER


def _unless_not_needed(index: int, outcome: Outcome) -> PartitionResult | None:
    """Who asks about everything hears only of partitions that do not have the wanted leader."""
    return None if outcome is NOT_NEEDED else _row(index, outcome)


def _row(index: int, outcome: Outcome) -> PartitionResult:
    return PartitionResult(partition_id=i32(index), error_code=wire_error(outcome.code), error_message=outcome.message)


def _topic_row(name: str, partitions: tuple[PartitionResult, ...]) -> ReplicaElectionResult:
    return ReplicaElectionResult(topic=TopicName(name), partition_result=partitions)
