"""DeleteTopics and CreatePartitions.

A topic that the caller may not describe is reported as denied, whether it exists or not. CreatePartitions adds
partitions to existing topics.
"""

from uuid import UUID

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows, repeated
from headrace.broker.handlers.kio_types import NO_ERROR, NO_THROTTLE, TopicName, error_of, wire_error
from headrace.core.controller.topic_control import DeletedTopic, NewPartitions
from headrace.model.errors import ErrorCode, HeadraceError, RequestError, TopicDenied
from headrace.protocol.api import ApiKey
from headrace.security.authorization import Operation, ResourceType, access_for

DESCRIBE_TOPIC = access_for(ApiKey.DELETE_TOPICS, ResourceType.TOPIC, Operation.DESCRIBE)
DELETE_TOPIC = access_for(ApiKey.DELETE_TOPICS, ResourceType.TOPIC, Operation.DELETE)

DELETION_DISABLED_FROM = 3  # older clients do not support TOPIC_DELETION_DISABLED

Target = str | UUID


async def handle_delete_topics(request: DeleteTopicsRequest, call: RequestContext) -> DeleteTopicsResponse:
    rows: list[DeletableTopicResult] = []
    targets: dict[Target, None] = {}
    twice = repeated(_named(topic) for topic in request.topics)
    for topic in request.topics:
        try:
            targets[_checked(topic, twice, call)] = None
        except RequestError as error:
            rows.append(_delete_topics_row(topic.name, topic.topic_id, error, call))
    outcomes = await call.broker.controller.delete_topics(list(targets))
    for target, outcome in outcomes.items():
        by_id = target if isinstance(target, UUID) else None
        name = None if isinstance(target, UUID) else target
        rows.append(_delete_topics_row(name, by_id, outcome, call))
    return DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(rows))


def _named(topic: DeleteTopicState) -> tuple[str | None, UUID | None]:
    return topic.name, topic.topic_id


def _checked(topic: DeleteTopicState, twice: set[tuple[str | None, UUID | None]], call: RequestContext) -> Target:
    if topic.name is not None and topic.topic_id is not None:
        raise RequestError("You may not specify both topic name and topic id.")
    if topic.name is None and topic.topic_id is None:
        raise RequestError("Neither topic name nor id were specified.")
    if _named(topic) in twice:
        raise RequestError("Duplicate topic name." if topic.name is not None else "Duplicate topic id.")
    name = topic.name if topic.topic_id is None else call.broker.image.topic_ids.get(topic.topic_id)
    if name is not None and not (allows(call, DESCRIBE_TOPIC, name) and allows(call, DELETE_TOPIC, name)):
        raise TopicDenied("Topic authorization failed.")
    return topic.name if topic.topic_id is None else topic.topic_id  # type: ignore[return-value]  # one is set


def _delete_topics_row(
    name: str | None, topic_id: UUID | None, outcome: DeletedTopic | HeadraceError, call: RequestContext
) -> DeletableTopicResult:
    if isinstance(outcome, DeletedTopic):
        return DeletableTopicResult(
            name=TopicName(outcome.name), topic_id=outcome.topic_id, error_code=NO_ERROR, error_message=None
        )
    code = outcome.code
    if code is ErrorCode.TOPIC_DELETION_DISABLED and call.api_version < DELETION_DISABLED_FROM:
        code = ErrorCode.INVALID_REQUEST
    return DeletableTopicResult(
        name=None if name is None else TopicName(name),
        topic_id=topic_id,
        error_code=wire_error(code),
        error_message=str(outcome),
    )


ALTER_TOPIC = access_for(ApiKey.CREATE_PARTITIONS, ResourceType.TOPIC, Operation.ALTER)


async def handle_create_partitions(request: CreatePartitionsRequest, call: RequestContext) -> CreatePartitionsResponse:
    twice = repeated(topic.name for topic in request.topics)
    outcomes: dict[str, int | HeadraceError] = {}
    wishes: list[NewPartitions] = []
    for topic in request.topics:
        if topic.name in twice:
            outcomes[topic.name] = RequestError("Duplicate topic name.")
        elif not allows(call, ALTER_TOPIC, topic.name):
            outcomes[topic.name] = TopicDenied("Topic authorization failed.")
        else:
            outcomes[topic.name] = 0
            wishes.append(_wish(topic))
    outcomes |= await call.broker.controller.create_partitions(wishes, validate_only=request.validate_only)
    rows = tuple(_create_partitions_row(name, outcome) for name, outcome in outcomes.items())
    return CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=rows)


def _wish(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = topic.assignments
    return NewPartitions(
        topic=topic.name,
        count=topic.count,
        assignments=None if assignments is None else tuple(one.broker_ids for one in assignments),
    )


def _create_partitions_row(name: str, outcome: int | HeadraceError) -> CreatePartitionsTopicResult:
    code, message = error_of(outcome) if isinstance(outcome, HeadraceError) else (NO_ERROR, None)
    return CreatePartitionsTopicResult(name=TopicName(name), error_code=code, error_message=message)
