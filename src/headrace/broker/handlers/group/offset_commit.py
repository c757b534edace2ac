"""OffsetCommit: commits a group's offsets. Each partition succeeds or fails on its own.

A plain function, because members send this request frequently. Commits that arrive together are written together.
"""

from uuid import UUID

from headrace.broker.api.context import RequestContext
from headrace.broker.api.deferred import DeferredResponse
from headrace.broker.handlers.access import allows
from headrace.core.group.coordinator_shard import NewOffset, Outcomes
from headrace.core.group.errors import InvalidGroupId
from headrace.core.group.group_manager import Committer
from headrace.core.image.metadata_image import TopicImage
from headrace.model.errors import (
    ErrorCode,
    GroupDenied,
    HeadraceError,
    TopicDenied,
    UnknownTopic,
    UnknownTopicId,
)
from headrace.model.ids import TopicPartition
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionCommit,
    TopicCommit,
    TopicRows,
)
from headrace.security.authorization import Operation, ResourceType, access_for

READ_GROUP = access_for(ApiKey.OFFSET_COMMIT, ResourceType.GROUP, Operation.READ)
READ_TOPIC = access_for(ApiKey.OFFSET_COMMIT, ResourceType.TOPIC, Operation.READ)

Refused = dict[tuple[str | UUID, int], HeadraceError]


def handle_offset_commit(
    request: OffsetCommitRequest, call: RequestContext
) -> OffsetCommitResponse | DeferredResponse[OffsetCommitResponse]:
    try:
        if not allows(call, READ_GROUP, request.group_id):
            raise GroupDenied(f"no access to group {request.group_id}")
        if not request.group_id:
            raise InvalidGroupId("a group has a name")
        refused, wanted = _sorted_out(request, call)
        if not wanted:
            return _answer(request, refused, {}, call)
        return _commit(request, refused, wanted, call)
    except HeadraceError as error:
        return _answer_all(request, error)


def _sorted_out(request: OffsetCommitRequest, call: RequestContext) -> tuple[Refused, list[NewOffset]]:
    """Splits the request into rows that fail before they reach the group and offsets for the group coordinator."""
    refused: Refused = {}
    wanted: list[NewOffset] = []
    for topic in request.topics:
        for one in topic.partitions:
            try:
                known = checked_topic(topic.topic, one.partition, call)
            except HeadraceError as error:
                refused[(topic.topic, one.partition)] = error
                continue
            wanted.append(new_offset(known, one, request.retention_ms))
    return refused, wanted


def new_offset(topic: TopicImage, row: PartitionCommit, retention_ms: int) -> NewOffset:
    partition, topic_id = TopicPartition(topic.name, row.partition), topic.topic_id.bytes
    return NewOffset(partition, row.offset, row.leader_epoch, row.metadata or "", retention_ms, topic_id)


def checked_topic(topic: str | UUID, index: int, call: RequestContext) -> TopicImage:
    """Returns the current topic if the caller may read it and the partition exists; raises otherwise."""
    image = call.broker.image
    if isinstance(topic, UUID):
        name = image.topic_ids.get(topic)
        if name is None:
            raise UnknownTopicId(f"no topic has the id {topic}")
    else:
        name = topic
    if not allows(call, READ_TOPIC, name):
        raise TopicDenied(f"no access to topic {name}")
    known = image.topics.get(name)
    if known is None or not 0 <= index < len(known.partitions):
        raise UnknownTopic(f"there is no partition {name}-{index}")
    return known


def _commit(
    request: OffsetCommitRequest, refused: Refused, wanted: list[NewOffset], call: RequestContext
) -> DeferredResponse[OffsetCommitResponse]:
    group_id = request.group_id
    committer = Committer(request.member_id, request.instance_id, request.generation, call.api_version)

    later = DeferredResponse(lambda outcome: answer_to(request, refused, outcome, call))
    # Permission to commit depends on members alone, never on offsets, so these requests can be batched.
    call.broker.groups.runtime.schedule_batched_write(
        group_id,
        lambda machine, ticket, now: machine.commit(group_id, committer, wanted, ticket, now),
        later.settle,
    )
    return later


def answer_to(
    request: OffsetCommitRequest, refused: Refused, outcome: Outcomes | HeadraceError, call: RequestContext
) -> OffsetCommitResponse:
    """Returns the response for the result of the group coordinator."""
    if isinstance(outcome, HeadraceError):
        return _answer_all(request, outcome)
    return _answer(request, refused, outcome, call)


def _answer(
    request: OffsetCommitRequest, refused: Refused, outcomes: Outcomes, call: RequestContext
) -> OffsetCommitResponse:
    return OffsetCommitResponse([_rows(topic, refused, outcomes, call) for topic in request.topics])


def _answer_all(request: OffsetCommitRequest, error: HeadraceError) -> OffsetCommitResponse:
    code = _code(error)
    return OffsetCommitResponse(
        [TopicRows(topic, [(one.partition, code) for one in rows]) for topic, rows in request.topics]
    )


def _rows(topic: TopicCommit, refused: Refused, outcomes: Outcomes, call: RequestContext) -> TopicRows:
    name = call.broker.image.topic_ids.get(topic.topic, "") if isinstance(topic.topic, UUID) else topic.topic
    rows = []
    for one in topic.partitions:
        error = refused.get((topic.topic, one.partition)) if refused else None
        error = error or outcomes.get(TopicPartition(name, one.partition))
        rows.append((one.partition, 0 if error is None else _code(error)))
    return TopicRows(topic.topic, rows)


def _code(error: HeadraceError) -> int:
    """Maps errors to the codes that this API returns."""
    if error.code is ErrorCode.MESSAGE_TOO_LARGE:
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return error.code
