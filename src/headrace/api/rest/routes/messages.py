"""Routes of messages: producing, and reading partitions by offset or timestamp."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse

from headrace.api.rest import schemas
from headrace.api.rest.errors import Problem
from headrace.api.rest.http import while_connected
from headrace.api.rest.messages import OFFSET_MAX, TIMESTAMP_MAX, Format, shown
from headrace.api.rest.produce import produce
from headrace.api.rest.read import Choice, ReadPosition, first_offset, lines, read
from headrace.api.rest.routing import Client, Partition, TopicName, document, make_router
from headrace.client.aio.fetch import EARLIEST, LATEST, offsets_at

short = make_router("messages")
full = make_router("messages")

NDJSON = "application/x-ndjson"
# Proxies and people give up after a minute.
WAIT_MS_MAX = 60_000

Isolation = Annotated[
    Literal["read_committed", "read_uncommitted"],
    Query(description="read_committed skips records of open and aborted transactions."),
]
Shape = Annotated[
    Format, Query(alias="format", description="`auto`: text, or base64 where it is none; `json`: parsed; `base64`.")
]
StartOffset = Annotated[int | None, Query(ge=0, le=OFFSET_MAX, description="Default: the first there is.")]
StartTime = Annotated[
    int | None, Query(ge=0, le=TIMESTAMP_MAX, description="Instead of an offset: the first record from this time on.")
]

_PRODUCE_DOC: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/MessageIn"},
                        {"$ref": "#/components/schemas/MessagesIn"},
                    ]
                },
                "examples": {
                    "one": {"value": {"key": "user-1", "value": "Hello World", "partition": 0}},
                    "many": {"value": {"messages": [{"value": "a"}, {"key": "k", "value": {"n": 1}}]}},
                },
            },
            "text/plain": {"schema": {"type": "string"}, "example": "Hello World"},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            NDJSON: {"schema": {"type": "string"}, "example": '{"value": "a"}\n{"value": "b"}\n'},
        },
    },
}


@short.post(
    "/topics/{topic}/messages",
    response_model=schemas.Placed | schemas.PlacedMany | schemas.Uploaded,
    responses={207: {"model": schemas.PlacedMany, "description": "Some of the messages failed"}},
    openapi_extra=_PRODUCE_DOC,
)
async def produce_messages(
    request: Request,
    client: Client,
    topic: TopicName,
    acks: Annotated[Literal["all", "leader", "none"] | None, Query(description="Default: the `acks` setting.")] = None,
    key: Annotated[str | None, Query(description="The key of a text or bytes message.")] = None,
    partition: Annotated[
        int | None, Query(ge=0, le=2**31 - 1, description="The partition of a text or bytes message.")
    ] = None,
) -> Response:
    """Produces a message, a batch, text, bytes, or a stream of lines."""
    answer = await produce(client, topic, request.scope, request.receive)
    return Response(answer.body, answer.status, dict(answer.headers), answer.media_type)


@short.get("/topics/{topic}/partitions/{partition}/messages", response_model=schemas.Messages)
async def fetch_messages(
    request: Request,
    client: Client,
    topic: TopicName,
    partition: Partition,
    offset: StartOffset = None,
    timestamp: StartTime = None,
    max_records: Annotated[
        int | None,
        Query(ge=1, le=1_000_000_000, description="Maximum messages; a response has at most `max_poll_records`."),
    ] = None,
    wait_ms: Annotated[int, Query(ge=0, le=WAIT_MS_MAX, description="Wait this long if there is none yet.")] = 0,
    isolation: Isolation = "read_committed",
    shape: Shape = "auto",
    follow: Annotated[bool, Query(description="For streams: continue at the end of the topic.")] = False,
) -> Response:
    """Reads a partition from an offset or timestamp.

    With `Accept: application/x-ndjson` the response is a stream of lines without a size limit.
    """
    _one_of(offset, timestamp)
    place, choice = ReadPosition(topic, partition), Choice(isolation == "read_committed", shape)
    await client.cluster.patiently(lambda: client.cluster.partition(topic, partition))
    start = await first_offset(client, place, offset, timestamp)
    if NDJSON in request.headers.get("accept", ""):
        if offset is not None:
            # An offset out of range fails here with a problem document, before the stream begins.
            await read(client, place, start, 1, 0, choice)
        return StreamingResponse(lines(client, place, start, max_records, follow, choice), media_type=NDJSON)
    most = min(max_records or client.settings.max_poll_records, client.settings.max_poll_records)
    found = await while_connected(request.scope, read(client, place, start, most, wait_ms, choice))
    return document(
        {
            "topic": topic,
            "partition": partition,
            "messages": [shown(record, shape) for record in found.records],
            "next_offset": found.next_offset,
            "high_watermark": found.high_watermark,
            "start_offset": found.start_offset,
        }
    )


@short.get("/topics/{topic}/partitions/{partition}/offsets", response_model=schemas.PartitionOffsets)
async def partition_offsets(client: Client, topic: TopicName, partition: Partition) -> Response:
    """Returns the log start offset and the log end offset of a partition."""
    cluster = client.cluster
    await cluster.patiently(lambda: cluster.partition(topic, partition))

    async def ask(when: int, *, committed_only: bool) -> int:
        found = await cluster.patiently(
            lambda: offsets_at(cluster, topic, [partition], when, committed_only=committed_only)
        )
        return found[partition]

    return document(
        {
            "topic": topic,
            "partition": partition,
            "start_offset": await ask(EARLIEST, committed_only=False),
            "end_offset": await ask(LATEST, committed_only=False),
            "stable_offset": await ask(LATEST, committed_only=True),
        }
    )


@full.get(
    "/topics/{topic}/messages",
    response_class=StreamingResponse,
    responses={200: {"content": {NDJSON: {"schema": {"type": "string"}}}, "description": "One record a line"}},
)
async def download_messages(
    client: Client,
    topic: TopicName,
    timestamp: StartTime = None,
    max_records: Annotated[int | None, Query(ge=1, le=1_000_000_000, description="Most lines.")] = None,
    isolation: Isolation = "read_committed",
    shape: Shape = "auto",
) -> Response:
    """Downloads a topic as NDJSON, one partition after the other."""
    facts = await client.cluster.patiently(lambda: client.cluster.topic(topic))
    choice = Choice(isolation == "read_committed", shape)

    async def everything() -> AsyncIterator[bytes]:
        left = max_records
        for one in facts.partitions:
            place = ReadPosition(topic, one.partition)
            start = await first_offset(client, place, None, timestamp)
            async for piece in lines(client, place, start, left, False, choice):
                yield piece
                if left is not None:
                    left -= piece.count(b"\n")
            if left is not None and left <= 0:
                return

    return StreamingResponse(everything(), media_type=NDJSON)


def _one_of(offset: int | None, timestamp: int | None) -> None:
    if offset is not None and timestamp is not None:
        raise Problem(422, "specify offset or timestamp, not both")
