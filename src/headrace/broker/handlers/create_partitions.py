"""CreatePartitions: more partitions for topics that exist."""

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse, CreatePartitionsTopicResult

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, TopicName, error_of
from headrace.broker.handlers.shared import allows, repeated
from headrace.core.cluster.topics import MorePartitions
from headrace.model.errors import HeadraceError, RequestError, TopicDenied
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

ALTER_TOPIC = access_for(ApiKey.CREATE_PARTITIONS, ResourceType.TOPIC, Operation.ALTER)


async def handle(request: CreatePartitionsRequest, call: Call) -> CreatePartitionsResponse:
    twice = repeated(topic.name for topic in request.topics)
    outcomes: dict[str, int | HeadraceError] = {}
    wishes: list[MorePartitions] = []
    for topic in request.topics:
        if topic.name in twice:
            outcomes[topic.name] = RequestError("Duplicate topic name.")
        elif not allows(call, ALTER_TOPIC, topic.name):
            outcomes[topic.name] = TopicDenied("Topic authorization failed.")
        else:
            outcomes[topic.name] = 0
            wishes.append(_wish(topic))
    outcomes |= await call.broker.controller.create_partitions(wishes, validate_only=request.validate_only)
    rows = tuple(_row(name, outcome) for name, outcome in outcomes.items())
    return CreatePartitionsResponse(throttle_time=NO_THROTTLE, results=rows)


def _wish(topic: CreatePartitionsTopic) -> MorePartitions:
    assignments = topic.assignments
    return MorePartitions(
        topic=topic.name,
        count=topic.count,
        assignments=None if assignments is None else tuple(one.broker_ids for one in assignments),
    )


def _row(name: str, outcome: int | HeadraceError) -> CreatePartitionsTopicResult:
    code, message = error_of(outcome) if isinstance(outcome, HeadraceError) else (NO_ERROR, None)
    return CreatePartitionsTopicResult(name=TopicName(name), error_code=code, error_message=message)
