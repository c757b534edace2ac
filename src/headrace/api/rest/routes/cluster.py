"""Routes of the cluster and its brokers."""

from fastapi import Response
from pydantic import BaseModel

from headrace.api.rest.errors import Problem
from headrace.api.rest.routing import BrokerId, Client, document, make_router
from headrace.client.aio.client import ClusterMetadata

full = make_router("cluster")


class BrokerRow(BaseModel):
    id: int
    host: str
    port: int
    rack: str | None
    controller: bool
    leads: int
    holds: int


class BrokerList(BaseModel):
    brokers: list[BrokerRow]


class ClusterView(BaseModel):
    id: str | None
    controller: int | None
    brokers: int
    topics: int
    partitions: int
    leaderless_partitions: int
    under_replicated_partitions: int


@full.get("/cluster", response_model=ClusterView)
async def cluster(client: Client) -> Response:
    """Returns the number of brokers, topics and partitions of the cluster."""
    facts = await client.cluster.everything()
    partitions = [one for topic in facts.topics.values() for one in topic.partitions]
    return document(
        {
            "id": facts.id,
            "controller": facts.controller if facts.controller >= 0 else None,
            "brokers": len(facts.brokers),
            "topics": len(facts.topics),
            "partitions": len(partitions),
            "leaderless_partitions": sum(one.leader < 0 for one in partitions),
            "under_replicated_partitions": sum(len(one.isr) < len(one.replicas) for one in partitions),
        }
    )


@full.get("/brokers", response_model=BrokerList)
async def brokers(client: Client) -> Response:
    """Lists the brokers with the number of partitions that each one leads and hosts."""
    return document({"brokers": _rows(await client.cluster.everything())})


@full.get("/brokers/{broker}", response_model=BrokerRow)
async def broker(client: Client, broker: BrokerId) -> Response:
    """Describes a broker."""
    for row in _rows(await client.cluster.everything()):
        if row["id"] == broker:
            return document(row)
    raise Problem(404, f"there is no broker {broker}")


def _rows(facts: ClusterMetadata) -> list[dict[str, object]]:
    partitions = [one for topic in facts.topics.values() for one in topic.partitions]
    return [
        {
            **one._asdict(),
            "controller": one.id == facts.controller,
            "leads": sum(part.leader == one.id for part in partitions),
            "holds": sum(one.id in part.replicas for part in partitions),
        }
        for _, one in sorted(facts.brokers.items())
    ]
