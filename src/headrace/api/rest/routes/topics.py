"""Routes of topics: create, list, describe, add partitions, delete records, delete."""

from typing import Annotated, Any

from fastapi import Query, Request, Response

from headrace.api.rest import schemas
from headrace.api.rest.clients import ApiClients
from headrace.api.rest.errors import Problem, to_json
from headrace.api.rest.http import etag, is_conditional, is_known
from headrace.api.rest.routes.configs import config_text
from headrace.api.rest.routing import (
    NOT_CHANGED,
    After,
    Client,
    Limit,
    TopicName,
    document,
    make_router,
    page,
    settled,
    tagged,
)
from headrace.client.aio.client import TopicMetadata
from headrace.client.aio.fetch import EARLIEST, LATEST, offsets_at

short = make_router("topics")
full = make_router("topics")

_BROKER_DEFAULT = -1


@short.post("/topics", status_code=201, response_model=schemas.CreatedTopic)
async def create_topic(client: Client, wanted: schemas.NewTopic) -> Response:
    """Creates a topic."""
    from confluent_kafka.cimpl import NewTopic

    replicas, warning = await _replicas(client, wanted)
    new = NewTopic(
        wanted.name,
        num_partitions=wanted.partitions or _BROKER_DEFAULT,
        replication_factor=replicas or _BROKER_DEFAULT,
        config={name: config_text(value) for name, value in wanted.configs.items() if value is not None},
    )
    made = client.admin.create_topics([new], request_timeout=client.request_timeout_s)
    await settled(made[wanted.name])
    client.cluster.forget(wanted.name)
    row = _row(await client.cluster.patiently(lambda: client.cluster.topic(wanted.name)))
    if warning is not None:
        row |= {"requested_replication_factor": wanted.replication_factor, "warning": warning}
    return document(row, 201, {"location": f"/api/v1/topics/{wanted.name}"})


async def _replicas(client: ApiClients, wanted: schemas.NewTopic) -> tuple[int | None, str | None]:
    """Returns the replication factor, reduced to the number of brokers unless `strict`, and a warning. Requests written
    for a cluster thus work on a single node.
    """
    if wanted.replication_factor is None or wanted.replication_factor == 1 or wanted.strict:
        return wanted.replication_factor, None
    brokers = len((await client.cluster.everything()).brokers)
    if wanted.replication_factor <= brokers:
        return wanted.replication_factor, None
    nodes = "is 1 broker" if brokers == 1 else f"are {brokers} brokers"
    return brokers, f"there {nodes}: the topic has as many replicas; add brokers and reassign it to have more"


@short.get("/topics", response_model=schemas.TopicList, responses=NOT_CHANGED)
async def list_topics(
    request: Request,
    client: Client,
    limit: Limit = 1000,
    after: After = None,
    internal: Annotated[bool, Query(description="Also those that the broker keeps for itself.")] = False,
) -> Response:
    """Lists topics by name."""
    facts = await client.cluster.everything()
    names = [name for name, topic in facts.topics.items() if internal or not topic.internal]
    part, following = page(names, limit, after)
    return tagged(request, {"topics": [_row(facts.topics[name]) for name in part], "next": following})


@short.get("/topics/{topic}", response_model=schemas.TopicView, responses=NOT_CHANGED)
async def describe_topic(request: Request, client: Client, topic: TopicName) -> Response:
    """Describes a topic: partitions, leaders, replicas, offsets."""
    return tagged(request, await _view(client, topic))


async def _view(client: ApiClients, topic: str) -> dict[str, Any]:
    cluster = client.cluster
    cluster.forget(topic)
    facts = await cluster.patiently(lambda: cluster.topic(topic))
    led = [one.partition for one in facts.partitions if one.leader >= 0]
    starts = await cluster.patiently(lambda: offsets_at(cluster, topic, led, EARLIEST))
    ends = await cluster.patiently(lambda: offsets_at(cluster, topic, led, LATEST, committed_only=False))
    partitions = [
        {
            "partition": one.partition,
            "leader": one.leader if one.leader >= 0 else None,
            "leader_epoch": one.leader_epoch,
            "replicas": list(one.replicas),
            "isr": list(one.isr),
            "start_offset": starts.get(one.partition),
            "end_offset": ends.get(one.partition),
        }
        for one in facts.partitions
    ]
    return {**_row(facts), "id": None if facts.id is None else str(facts.id), "partition_list": partitions}


@short.delete("/topics/{topic}", response_model=schemas.DeletedTopic)
async def delete_topic(request: Request, client: Client, topic: TopicName) -> Response:
    """Deletes a topic and its records; with `If-Match` only if it has not changed since it was read."""
    if is_conditional(request.headers):
        tag = etag(to_json(await _view(client, topic)))
        is_known(request.headers, request.method, tag)  # Problem 412 if a precondition fails
    gone = client.admin.delete_topics([topic], request_timeout=client.request_timeout_s)
    try:
        await settled(gone[topic])
    finally:
        client.cluster.forget(topic)
    return document({"deleted": topic})


@full.post("/topics/{topic}/partitions", response_model=schemas.TopicRow)
async def add_partitions(client: Client, topic: TopicName, wanted: schemas.MorePartitions) -> Response:
    """Increases the number of partitions. Later records may be assigned to another partition than earlier ones of their
    key.
    """
    from confluent_kafka.cimpl import NewPartitions

    await client.cluster.patiently(lambda: client.cluster.topic(topic))
    grown = client.admin.create_partitions(
        [NewPartitions(topic, wanted.partitions)], request_timeout=client.request_timeout_s
    )
    await settled(grown[topic])
    client.cluster.forget(topic)
    return document(_row(await client.cluster.patiently(lambda: client.cluster.topic(topic))))


@full.post("/topics/{topic}/delete-records", response_model=schemas.StartOffsets)
async def delete_records(client: Client, topic: TopicName, wanted: schemas.RecordsBefore) -> Response:
    """Deletes the records before an offset, per partition."""
    from confluent_kafka import OFFSET_END, TopicPartition

    for row in wanted.partitions:
        number = row.partition
        await client.cluster.patiently(lambda number=number: client.cluster.partition(topic, number))  # type: ignore[misc]
    places = [
        TopicPartition(topic, row.partition, OFFSET_END if row.before_offset is None else row.before_offset)
        for row in wanted.partitions
    ]
    if len({place.partition for place in places}) < len(places):
        raise Problem(422, "a partition stands twice in the request")
    outcomes = client.admin.delete_records(places, request_timeout=client.request_timeout_s)
    rows = []
    for place, future in outcomes.items():
        done = await settled(future)
        rows.append({"partition": place.partition, "start_offset": done.low_watermark})
    return document({"partitions": rows})


def _row(facts: TopicMetadata) -> dict[str, Any]:
    return {
        "name": facts.name,
        "partitions": len(facts.partitions),
        "replication_factor": max((len(one.replicas) for one in facts.partitions), default=0),
        "internal": facts.internal,
    }
