"""Routes of committed offsets in the first API version: create a group, commit, read."""

from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field

from headrace.api.rest import schemas
from headrace.api.rest.clients import ApiClients
from headrace.api.rest.routing import TOPIC_PATTERN, Client, GroupId, document, make_router, settled
from headrace.client.aio.fetch import EARLIEST, LATEST, offsets_at
from headrace.client.core.errors import KafkaApiError, from_kafka_error
from headrace.client.group_admin import MEMBERS_ARE_THERE, GroupNotEmptyError

short = make_router("groups")


class NewGroup(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"topic_name": "my-topic"}]})

    topic_name: schemas.Name
    offset_reset: Annotated[str, Field(pattern="^(earliest|latest)$")] = "earliest"


class Commit(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"topic_name": "my-topic", "partition": 0, "offset": 5}]}
    )

    topic_name: schemas.Name
    partition: schemas.PartitionNumber
    offset: schemas.Offset
    metadata: Annotated[str, Field(max_length=4096)] = ""


class OffsetRow(BaseModel):
    topic: str
    partition: int
    offset: int
    metadata: str | None = None


class GroupOffsets(BaseModel):
    group: str
    offsets: list[OffsetRow]


@short.post("/consumers/{group}/groups", status_code=201, response_model=GroupOffsets)
async def create_group(client: Client, group: GroupId, wanted: NewGroup) -> Response:
    """Creates a group with offsets at the start or the end of a topic. Committed offsets are unchanged."""
    cluster, topic = client.cluster, wanted.topic_name
    facts = await cluster.patiently(lambda: cluster.topic(topic))
    known = {row["partition"] for row in await committed(client, group, topic)}
    fresh = [one.partition for one in facts.partitions if one.partition not in known]
    when = EARLIEST if wanted.offset_reset == "earliest" else LATEST
    starts = await cluster.patiently(lambda: offsets_at(cluster, topic, fresh, when))
    if starts:
        await commit(client, group, [(topic, partition, offset, "") for partition, offset in starts.items()])
    return document({"group": group, "offsets": await committed(client, group, topic)}, 201)


@short.post("/consumers/{group}/offsets", response_model=GroupOffsets)
async def commit_offset(client: Client, group: GroupId, wanted: Commit) -> Response:
    """Commits an offset. Rejected while the group has members, which commit their own offsets (409)."""
    topic, partition = wanted.topic_name, wanted.partition
    await client.cluster.patiently(lambda: client.cluster.partition(topic, partition))
    await commit(client, group, [(topic, partition, wanted.offset, wanted.metadata)])
    return document({"group": group, "offsets": await committed(client, group, topic)})


@short.get("/consumers/{group}/offsets", response_model=GroupOffsets)
async def group_offsets(
    client: Client,
    group: GroupId,
    topic: Annotated[str | None, Query(pattern=TOPIC_PATTERN, description="Only this topic.")] = None,
) -> Response:
    """Returns the committed offsets of a group."""
    return document({"group": group, "offsets": await committed(client, group, topic)})


async def committed(client: ApiClients, group: str, topic: str | None = None) -> list[dict[str, Any]]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = [ConsumerGroupTopicPartitions(group)]
    (future,) = client.admin.list_consumer_group_offsets(asked, request_timeout=client.request_timeout_s).values()
    found = (await settled(future)).topic_partitions or []
    rows = [
        {"topic": one.topic, "partition": one.partition, "offset": one.offset, "metadata": one.metadata}
        for one in found
        if one.offset >= 0 and one.error is None and topic in (None, one.topic)
    ]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


async def commit(client: ApiClients, group: str, rows: list[tuple[str, int, int, str]]) -> None:
    """Commits through the admin API, not as a member. The broker accepts that only while the group is empty."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    places = [TopicPartition(topic, partition, offset, metadata) for topic, partition, offset, metadata in rows]
    request = [ConsumerGroupTopicPartitions(group, places)]
    (future,) = client.admin.alter_consumer_group_offsets(request, request_timeout=client.request_timeout_s).values()
    try:
        done = await settled(future)
    except KafkaApiError as refused:
        raise _explained(group, refused) from refused
    for place in done.topic_partitions:
        if place.error is not None:
            raise _explained(group, from_kafka_error(place.error))


def _explained(group: str, error: Exception) -> Exception:
    if isinstance(error, KafkaApiError) and error.code.name in MEMBERS_ARE_THERE:
        return GroupNotEmptyError(group)
    return error
