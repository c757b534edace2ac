"""DeleteTopics, by name and by id. What a caller may not see is answered as denied, whether it exists or not."""

from uuid import UUID

from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, TopicName, wire_error
from headrace.broker.handlers.shared import allows, repeated
from headrace.core.cluster.topics import DeletedTopic
from headrace.model.errors import ErrorCode, HeadraceError, RequestError, TopicDenied
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_TOPIC = access_for(ApiKey.DELETE_TOPICS, ResourceType.TOPIC, Operation.DESCRIBE)
DELETE_TOPIC = access_for(ApiKey.DELETE_TOPICS, ResourceType.TOPIC, Operation.DELETE)

DELETION_DISABLED_FROM = 3  # older clients do not know the code that says so

Target = str | UUID


async def handle(request: DeleteTopicsRequest, call: Call) -> DeleteTopicsResponse:
    rows: list[DeletableTopicResult] = []
    targets: dict[Target, None] = {}
    twice = repeated(_named(topic) for topic in request.topics)
    for topic in request.topics:
        try:
            targets[_checked(topic, twice, call)] = None
        except RequestError as error:
            rows.append(_row(topic.name, topic.topic_id, error, call))
    outcomes = await call.broker.controller.delete_topics(list(targets))
    for target, outcome in outcomes.items():
        by_id = target if isinstance(target, UUID) else None
        name = None if isinstance(target, UUID) else target
        rows.append(_row(name, by_id, outcome, call))
    return DeleteTopicsResponse(throttle_time=NO_THROTTLE, responses=tuple(rows))


def _named(topic: DeleteTopicState) -> tuple[str | None, UUID | None]:
    return topic.name, topic.topic_id


def _checked(topic: DeleteTopicState, twice: set[tuple[str | None, UUID | None]], call: Call) -> Target:
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


def _row(
    name: str | None, topic_id: UUID | None, outcome: DeletedTopic | HeadraceError, call: Call
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
