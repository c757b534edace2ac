"""Routes of consumer instances: members of consumer groups for HTTP clients. Join, poll, commit, leave."""

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from headrace.api.rest import schemas
from headrace.api.rest.clients import CLIENT_ID
from headrace.api.rest.consumers import Consumer, PollResponse
from headrace.api.rest.errors import Problem, to_json
from headrace.api.rest.http import check_not_pipelined
from headrace.api.rest.messages import delivered
from headrace.api.rest.routes.messages import WAIT_MS_MAX, Shape
from headrace.api.rest.routing import Client, GroupId, document, make_router
from headrace.api.rest.sse import EVENT_ID_BYTES_MAX, parse_event_id
from headrace.client.aio.consumer import GroupConsumerConfig, PartitionKey
from headrace.client.aio.start_offsets import GroupBeginning

if TYPE_CHECKING:
    from confluent_kafka import Message

full = make_router("consumers")

CONSUMER_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"
ConsumerId = Annotated[
    str,
    Path(pattern=CONSUMER_PATTERN, examples=["reader-1"], description="The consumer, as joining named it."),
]


class Joining(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"topics": ["my-topic"]}]})

    topics: Annotated[list[schemas.Name], Field(min_length=1, max_length=100)]
    id: Annotated[str, Field(pattern=CONSUMER_PATTERN)] | None = Field(
        None, description="Default: generated. A name that is in use is rejected."
    )
    offset_reset: Annotated[str, Field(pattern="^(earliest|latest)$")] = Field(
        "earliest", description="Where to begin when the group has committed nothing."
    )
    session_timeout_ms: Annotated[int, Field(ge=6_000, le=1_800_000, strict=True)] | None = Field(
        None, description="How long it may be silent before it is removed. Default: the `session_timeout_ms` setting."
    )
    isolation: Annotated[str, Field(pattern="^read_(un)?committed$")] = "read_committed"


class PartitionOf(BaseModel):
    topic: str
    partition: int


class ConsumerView(BaseModel):
    group: str
    consumer: str
    topics: list[str]
    session_timeout_ms: int
    assigned: list[PartitionOf]


class ConsumerList(BaseModel):
    consumers: list[ConsumerView]


class DeliveredMessage(schemas.MessageOut):
    topic: str
    partition: int


class Delivered(BaseModel):
    messages: list[DeliveredMessage]
    assigned: list[PartitionOf]
    delivery: int


class OffsetIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    topic: schemas.Name
    partition: schemas.PartitionNumber
    offset: schemas.Offset


class Commit(BaseModel):
    """Empty: commits everything received. `delivery`: up to its last record. `offsets`: exactly these."""

    model_config = ConfigDict(extra="forbid")

    offsets: Annotated[list[OffsetIn], Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="Each the next offset to read."
    )
    delivery: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        None, description="The `delivery` of the last response that was processed."
    )
    event_id: Annotated[str, Field(min_length=1, max_length=EVENT_ID_BYTES_MAX)] | None = Field(
        None, description="For a stream: the id of the last event that was processed."
    )


class Committed(BaseModel):
    offsets: list[OffsetIn]


class Left(BaseModel):
    left: str


@full.post("/groups/{group}/consumers", status_code=201, response_model=ConsumerView)
async def join_group(client: Client, group: GroupId, wanted: Joining) -> Response:
    """Joins a group. The consumer shares the partitions of the topics with the group's other members, of any client."""
    for topic in wanted.topics:
        await client.cluster.patiently(lambda topic=topic: client.cluster.topic(topic))  # type: ignore[misc]
    settings = GroupConsumerConfig(
        group=group,
        topics=tuple(wanted.topics),
        client_id=CLIENT_ID,
        session_timeout_ms=wanted.session_timeout_ms or client.settings.session_timeout_ms,
        offset_reset=wanted.offset_reset,
        committed_only=wanted.isolation == "read_committed",
        buffered_max=client.settings.max_poll_records,
    )
    beginning = None
    # librdkafka would resolve `latest` only after `assigned` has reported the assignment.
    if wanted.offset_reset == "latest":
        beginning = GroupBeginning(client.coordinators, group, latest=True, committed_only=settings.committed_only)
    consumer = client.consumers.create(settings, wanted.id, beginning)
    location = f"/api/v1/groups/{group}/consumers/{consumer.id}"
    return document(_view(group, consumer), 201, {"location": location} if group.isascii() else None)


@full.get("/groups/{group}/consumers", response_model=ConsumerList)
async def list_consumers(client: Client, group: GroupId) -> Response:
    """Lists the group's consumers in this gateway."""
    return document({"consumers": [_view(group, one) for one in client.consumers.of(group)]})


@full.get("/groups/{group}/consumers/{consumer}/messages", response_model=Delivered)
async def poll(
    request: Request,
    client: Client,
    group: GroupId,
    consumer: ConsumerId,
    max_records: Annotated[
        int | None, Query(ge=1, le=1_000_000_000, description="Most messages; `max_poll_records` at most.")
    ] = None,
    wait_ms: Annotated[int, Query(ge=0, le=WAIT_MS_MAX, description="Wait this long if there is none yet.")] = 1_000,
    shape: Shape = "auto",
    delivery: Annotated[
        int | None,
        Query(ge=0, description="The `delivery` of the last response that was received; later ones are repeated."),
    ] = None,
) -> Response:
    """Returns the next messages of the consumer's partitions and keeps its session alive.

    Acknowledges the last response. A response whose connection broke before it was read is delivered again.
    """
    check_not_pipelined(request.scope)
    found = client.consumers.find(group, consumer)
    if found.listens:
        raise Problem(409, f"{consumer} is a stream: its messages come as events")
    most = min(max_records or client.settings.max_poll_records, client.settings.max_poll_records)
    wait_s = 0 if client.stopping.is_set() else wait_ms / 1000

    def show(messages: "list[Message]") -> bytes:
        shown = [delivered(message, shape) for message in messages]
        return to_json({"messages": shown, "assigned": _assigned(found), "delivery": found.deliveries.number})

    def touch() -> None:
        client.consumers.find(group, consumer)

    return PollResponse(found, touch, show, most, wait_s, delivery)


@full.post("/groups/{group}/consumers/{consumer}/offsets", response_model=Committed)
async def commit(request: Request, client: Client, group: GroupId, consumer: ConsumerId, wanted: Commit) -> Response:
    """Commits what was received, or exact offsets, for partitions assigned to the consumer."""
    check_not_pipelined(request.scope)
    found = client.consumers.find(group, consumer)
    named = [name for name, given in wanted if given is not None]
    if len(named) > 1:
        raise Problem(422, f"{' and '.join(named)} exclude each other: send one of them, or neither")
    if wanted.event_id is not None:
        offsets = await found.member.acknowledge(_positions(wanted.event_id))
    else:
        offsets = _exact(found, wanted.offsets) if wanted.offsets else _received(found, wanted.delivery)
        await found.member.commit(offsets)
    rows = [{"topic": topic, "partition": part, "offset": at} for (topic, part), at in sorted(offsets.items())]
    return document({"offsets": rows})


def _positions(event_id: str) -> dict[PartitionKey, int]:
    try:
        return parse_event_id(event_id)
    except ValueError:
        raise Problem(422, "event_id is not the id of an event of a stream") from None


def _exact(found: Consumer, rows: list[OffsetIn]) -> dict[PartitionKey, int]:
    offsets = {(row.topic, row.partition): row.offset for row in rows}
    foreign = sorted(offsets.keys() - set(found.member.assigned))
    if foreign:
        topic, partition = foreign[0]
        raise Problem(409, f"{topic}-{partition} is not assigned to this consumer; another member reads it")
    return offsets


def _received(found: Consumer, delivery: int | None) -> dict[PartitionKey, int]:
    if found.listens:
        raise Problem(
            422, f"{found.id} is a stream: name the event_id of the last event that was processed, or offsets"
        )
    return dict(found.deliveries.offsets(delivery))


@full.delete("/groups/{group}/consumers/{consumer}", response_model=Left)
async def leave(client: Client, group: GroupId, consumer: ConsumerId) -> Response:
    """Leaves the group. Its partitions are assigned to other members, which receive uncommitted messages again."""
    await client.consumers.remove(group, consumer)
    return document({"left": consumer})


def _view(group: str, consumer: Consumer) -> dict[str, Any]:
    settings = consumer.member.settings
    return {
        "group": group,
        "consumer": consumer.id,
        "topics": list(settings.topics),
        "session_timeout_ms": settings.session_timeout_ms,
        "assigned": _assigned(consumer),
    }


def _assigned(consumer: Consumer) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": partition} for topic, partition in consumer.member.assigned]
