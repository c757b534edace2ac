"""Routes of transactions: state and partitions."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query, Response
from pydantic import BaseModel

from headrace.api.rest.clients import ApiClients
from headrace.api.rest.routing import After, Client, Limit, blocking, document, make_router, page
from headrace.client.core.errors import KafkaApiError
from headrace.client.sync import transactions as asked
from headrace.client.sync.transport import Connection

full = make_router("transactions")

Value = TypeVar("Value")
TransactionalId = Annotated[str, Path(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/]+$")]


class TransactionRow(BaseModel):
    transactional_id: str
    producer_id: int
    state: str


class TransactionList(BaseModel):
    transactions: list[TransactionRow]
    next: str | None


class TransactionView(TransactionRow):
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: list[str]


@full.get("/transactions", response_model=TransactionList)
async def list_transactions(
    client: Client,
    limit: Limit = 100,
    after: After = None,
    state: Annotated[str | None, Query(max_length=40, description="Only those in this state, e.g. Ongoing.")] = None,
) -> Response:
    """Lists the transactions of all coordinators."""
    found: dict[str, dict[str, Any]] = {}
    for broker in (await client.cluster.brokers()).values():
        address = (broker.host, broker.port)
        rows = await _ask(client, address, lambda connection: asked.list_transactions(connection))
        found |= {row.transactional_id: row._asdict() for row in rows if state in (None, row.state)}
    part, following = page(list(found), limit, after)
    return document({"transactions": [found[name] for name in part], "next": following})


@full.get("/transactions/{transactional_id}", response_model=TransactionView)
async def describe_transaction(client: Client, transactional_id: TransactionalId) -> Response:
    """Describes a transaction: start time and partitions."""
    anyone = next(iter((await client.cluster.brokers()).values()))
    coordinator = await _ask(
        client, (anyone.host, anyone.port), lambda connection: asked.coordinator_of(connection, transactional_id)
    )
    found = await _ask(client, coordinator, lambda connection: asked.describe_transaction(connection, transactional_id))
    shown = found._asdict()
    shown["started_ms"] = found.started_ms if found.started_ms >= 0 else None
    shown["partitions"] = [f"{topic}-{partition}" for topic, partition in found.partitions]
    return document(shown)


async def _ask(client: ApiClients, address: tuple[str, int], question: Callable[[Connection], Value]) -> Value:
    def ask() -> Value:
        with Connection(*address, client.request_timeout_s) as connection:
            return question(connection)

    try:
        return await blocking(client, ask)
    except asked.TransactionError as refused:
        raise KafkaApiError(refused.code, str(refused)) from refused
