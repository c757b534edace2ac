"""CreateTopics: the controller's result for each topic. The response is sent when the partitions accept writes."""

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import METADATA_TOPIC, allows, repeated
from headrace.core.controller.topic_control import CreatedTopic as Outcome
from headrace.core.controller.topic_control import NewTopic as Wish
from headrace.model.errors import ErrorCode, HeadraceError, InvalidReplicaAssignment, RequestError, TopicDenied
from headrace.model.ids import ZERO_UUID
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.create_topics import (
    ConfigRow,
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    NewTopic,
)
from headrace.security.authorization import Operation, ResourceType, access_for

CREATE_ON_CLUSTER = access_for(ApiKey.CREATE_TOPICS, ResourceType.CLUSTER, Operation.CREATE)
CREATE_TOPIC = access_for(ApiKey.CREATE_TOPICS, ResourceType.TOPIC, Operation.CREATE)
DESCRIBE_CONFIGS = access_for(ApiKey.CREATE_TOPICS, ResourceType.TOPIC, Operation.DESCRIBE_CONFIGS)


async def handle_create_topics(request: CreateTopicsRequest, call: RequestContext) -> CreateTopicsResponse:
    twice = repeated(topic.name for topic in request.topics)
    outcomes: dict[str, Outcome | HeadraceError] = {}
    wishes: list[Wish] = []
    for topic in request.topics:
        try:
            outcomes.setdefault(topic.name, RequestError("Duplicate topic name."))
            if topic.name not in twice:
                wishes.append(_checked(topic, call))
        except HeadraceError as error:
            outcomes[topic.name] = error
    outcomes |= await call.broker.controller.create_topics(wishes, validate_only=request.validate_only)
    return CreateTopicsResponse([_row(name, outcome, request, call) for name, outcome in outcomes.items()])


def _checked(topic: NewTopic, call: RequestContext) -> Wish:
    if not allows(call, CREATE_ON_CLUSTER) and not allows(call, CREATE_TOPIC, topic.name):
        raise TopicDenied("Authorization failed.")
    if topic.name == METADATA_TOPIC:
        raise RequestError(f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    assignments = dict(topic.assignments)
    if len(assignments) < len(topic.assignments):
        raise InvalidReplicaAssignment("a partition is assigned twice")
    return Wish(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=assignments or None,
        configs=dict(topic.configs),
    )


def _row(
    name: str, outcome: Outcome | HeadraceError, request: CreateTopicsRequest, call: RequestContext
) -> CreatedTopic:
    if isinstance(outcome, HeadraceError):
        return CreatedTopic(name, outcome.code, str(outcome))
    # A validated topic does not exist, so its id is not returned.
    made = CreatedTopic(name, topic_id=ZERO_UUID if request.validate_only else outcome.topic_id)
    if not allows(call, DESCRIBE_CONFIGS, name):
        return made._replace(config_error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return made._replace(
        partitions=outcome.partitions,
        replication_factor=outcome.replication_factor,
        configs=[ConfigRow(row.name, row.value, row.read_only, row.source, row.sensitive) for row in outcome.configs],
    )
