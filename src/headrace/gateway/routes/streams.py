"""Live streams: server-sent events, so that `curl -N` is a member of a real group."""

import uuid
from typing import Annotated, Any, Literal

from fastapi import Header, Query, Response
from fastapi.responses import StreamingResponse

from headrace.client.member import MemberSettings
from headrace.gateway.encoding import Format
from headrace.gateway.events import EVENT_ID_BYTES_MAX, EventStream, parse_event_id
from headrace.gateway.problems import Problem
from headrace.gateway.routes.messages import Isolation, Shape
from headrace.gateway.routing import TOPIC_PATTERN, Client, GroupId, TopicName, make_router
from headrace.gateway.services import CLIENT_ID, Services

full = make_router("streams")

_TOPIC = Annotated[str, Query(pattern=TOPIC_PATTERN)]
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events until the client hangs up",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
LastEventId = Annotated[
    str | None,
    Header(max_length=EVENT_ID_BYTES_MAX, description="The id of the last event that was seen: go on behind it."),
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
    last_event_id: LastEventId = None,
) -> Response:
    """Join a group and get its messages as events, for as long as the connection lasts.

    What was sent is committed about a second later; reconnecting with Last-Event-ID loses nothing and repeats nothing.
    """
    settings = _settings(client, group, topic, offset_reset, isolation)
    return await _stream(client, settings, last_event_id, shape, commits=True)


@full.get("/topics/{topic}/stream", response_class=StreamingResponse, responses=_EVENTS)
async def topic_stream(
    client: Client,
    topic: TopicName,
    offset_reset: Reset = "latest",
    isolation: Isolation = "read_committed",
    shape: Shape = "auto",
    last_event_id: LastEventId = None,
) -> Response:
    """Everything that comes into a topic from now on, without a group: nothing is shared, nothing is committed."""
    settings = _settings(client, f"headrace-stream-{uuid.uuid4().hex}", [topic], offset_reset, isolation)
    return await _stream(client, settings, last_event_id, shape, commits=False)


def _settings(client: Services, group: str, topics: list[str], reset: str, isolation: str) -> MemberSettings:
    return MemberSettings(
        group=group,
        topics=tuple(dict.fromkeys(topics)),
        client_id=CLIENT_ID,
        session_timeout_ms=client.settings.session_timeout_ms,
        offset_reset=reset,
        committed_only=isolation == "read_committed",
        buffered_max=client.settings.max_poll_records,
    )


async def _stream(
    client: Services, settings: MemberSettings, last_event_id: str | None, format_: Format, *, commits: bool
) -> Response:
    try:
        positions = parse_event_id(last_event_id or "")
    except ValueError:
        raise Problem(422, "Last-Event-ID is not the id of an event of such a stream") from None
    for topic in settings.topics:
        await client.cluster.patiently(lambda topic=topic: client.cluster.topic(topic))  # type: ignore[misc]
    member = client.consumers.join(settings, positions)
    return EventStream(client, member, positions, commits=commits, format_=format_)
