"""Routes of live streams: server-sent events, so that `curl -N` can be a member of a consumer group."""

import uuid
from typing import Annotated, Any, Literal

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse

from headrace.api.rest.clients import CLIENT_ID, ApiClients
from headrace.api.rest.errors import Problem
from headrace.api.rest.read import TOPIC_STREAM_PARTITIONS_MAX, too_many_partitions, whole_topic
from headrace.api.rest.routes.consumers import CONSUMER_PATTERN
from headrace.api.rest.routes.messages import Isolation, Shape
from headrace.api.rest.routing import TOPIC_PATTERN, Client, GroupId, TopicName, make_router
from headrace.api.rest.sse import EVENT_ID_BYTES_MAX, EventStream, GroupPositions, TopicPositions, parse_event_id
from headrace.client.aio.consumer import GroupConsumerConfig, PartitionKey
from headrace.client.aio.start_offsets import GroupBeginning, topic_beginning
from headrace.client.librdkafka import UNUSED_GROUP

full = make_router("streams")

_TOPIC = Annotated[str, Query(pattern=TOPIC_PATTERN)]
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events until the client closes the connection",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
LastEventId = Annotated[
    str | None,
    Header(max_length=EVENT_ID_BYTES_MAX, description="Id of the last event received: continue after it."),
]
Reset = Annotated[
    Literal["earliest", "latest"], Query(description="Where to begin when the group has committed nothing.")
]


@full.get("/groups/{group}/stream", response_class=StreamingResponse, responses=_EVENTS)
async def group_stream(
    client: Client,
    group: GroupId,
    topic: Annotated[list[_TOPIC], Query(min_length=1, max_length=100, description="One or more topics.")],
    offset_reset: Reset = "earliest",
    isolation: Isolation = "read_committed",
    shape: Shape = "auto",
    consumer: Annotated[
        str | None, Query(alias="id", pattern=CONSUMER_PATTERN, description="The consumer's name. Default: made up.")
    ] = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Joins a group and sends its messages as events until the connection ends.

    Sending an event commits nothing. The client acknowledges with the Last-Event-ID with which it reconnects, or with
    a commit as the consumer in the response header `headrace-consumer`.
    """
    seen = _parsed(last_event_id)
    topics = tuple(dict.fromkeys(topic))
    for name in topics:
        await client.cluster.patiently(lambda name=name: client.cluster.topic(name))  # type: ignore[misc]
    settings = _settings(client, topics, offset_reset, isolation, group=group)
    name, positions = consumer or uuid.uuid4().hex, GroupPositions()
    beginning = GroupBeginning(
        client.coordinators,
        group,
        latest=offset_reset == "latest",
        committed_only=settings.committed_only,
        seen=seen,
        sent=positions.get,
    )
    reading = client.consumers.listening(settings, name, beginning)
    return EventStream(client, reading, positions.moved, shape, headers={"headrace-consumer": name})


@full.get("/topics/{topic}/stream", response_class=StreamingResponse, responses=_EVENTS)
async def topic_stream(
    client: Client,
    topic: TopicName,
    offset_reset: Reset = "latest",
    isolation: Isolation = "read_committed",
    shape: Shape = "auto",
    last_event_id: LastEventId = None,
) -> Response:
    """Sends new records of all partitions of a topic as events, without a group and without commits.

    Sends every record produced after the response has begun. With Last-Event-ID it continues after that event.
    """
    seen = _parsed(last_event_id)
    foreign = next((name for name, _ in seen if name != topic), None)
    if foreign is not None:
        raise Problem(422, f"Last-Event-ID is of a stream of {foreign}, and this is one of {topic}")
    # With a stale partition count the stream would miss a partition, or request one that does not exist.
    client.cluster.forget(topic)
    count = len((await client.cluster.patiently(lambda: client.cluster.topic(topic))).partitions)
    if count > TOPIC_STREAM_PARTITIONS_MAX:
        raise too_many_partitions(topic, count)
    settings = _settings(client, (topic,), offset_reset, isolation)
    offsets = await topic_beginning(client.cluster, topic, count, seen, settings)
    positions = TopicPositions(topic, offsets)
    reading = whole_topic(client, settings, positions, offsets)
    return EventStream(client, reading, positions.moved, shape, first_id=positions.id)


def _settings(
    client: ApiClients, topics: tuple[str, ...], reset: str, isolation: str, group: str = UNUSED_GROUP
) -> GroupConsumerConfig:
    return GroupConsumerConfig(
        group=group,
        topics=topics,
        client_id=CLIENT_ID,
        session_timeout_ms=client.settings.session_timeout_ms,
        offset_reset=reset,
        committed_only=isolation == "read_committed",
        buffered_max=client.settings.max_poll_records,
    )


def _parsed(last_event_id: str | None) -> dict[PartitionKey, int]:
    try:
        return parse_event_id(last_event_id or "")
    except ValueError:
        raise Problem(422, "Last-Event-ID is not the id of an event of such a stream") from None
