"""Routes of topic and broker configurations: effective values with their sources, and changes of single keys."""

from typing import Annotated, Any

from fastapi import Header, Request, Response

from headrace.api.rest import schemas
from headrace.api.rest.clients import ApiClients
from headrace.api.rest.errors import Problem, to_json
from headrace.api.rest.http import etag, is_conditional, is_known
from headrace.api.rest.routing import NOT_CHANGED, BrokerId, Client, TopicName, blocking, changed, make_router, tagged
from headrace.api.rest.schemas import ConfigChanges
from headrace.client.core.errors import KafkaApiError
from headrace.client.sync import configs
from headrace.client.sync.configs import ConfigError, ResourceType
from headrace.client.sync.transport import Connection

full = make_router("configs")

# For the OpenAPI document only; `is_known` evaluates the headers.
IfMatch = Annotated[str | None, Header(description="Change only what still has one of these ETags (else 412).")]
IfNoneMatch = Annotated[str | None, Header(description="Change only what has none of these ETags (else 412).")]


@full.get("/topics/{topic}/configs", response_model=schemas.ConfigList, responses=NOT_CHANGED)
async def topic_configs(request: Request, client: Client, topic: TopicName) -> Response:
    """Returns every configuration key of a topic with its effective value and source."""
    await client.cluster.patiently(lambda: client.cluster.topic(topic))
    return tagged(request, await _described(client, ResourceType.TOPIC, topic))


@full.patch("/topics/{topic}/configs", response_model=schemas.ConfigList)
async def alter_topic_configs(
    request: Request,
    client: Client,
    topic: TopicName,
    changes: ConfigChanges,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Sets keys of a topic; null resets a key to its default. Other keys are unchanged."""
    await client.cluster.patiently(lambda: client.cluster.topic(topic))
    return await _altered(request, client, ResourceType.TOPIC, topic, changes)


@full.get("/brokers/{broker}/configs", response_model=schemas.ConfigList, responses=NOT_CHANGED)
async def broker_configs(request: Request, client: Client, broker: BrokerId) -> Response:
    """Returns every configuration key of a broker with its effective value and source."""
    return tagged(request, await _described(client, ResourceType.BROKER, str(broker)))


@full.patch("/brokers/{broker}/configs", response_model=schemas.ConfigList)
async def alter_broker_configs(
    request: Request,
    client: Client,
    broker: BrokerId,
    changes: ConfigChanges,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Sets dynamic keys of a running broker; null resets a key to its default."""
    return await _altered(request, client, ResourceType.BROKER, str(broker), changes)


async def _described(client: ApiClients, kind: ResourceType, name: str) -> dict[str, Any]:
    host, port = await address_for(client, kind, name)

    def ask() -> list[configs.Entry] | ConfigError:
        with Connection(host, port, client.request_timeout_s) as connection:
            return configs.describe(connection, kind, name)

    found = await blocking(client, ask)
    if isinstance(found, ConfigError):
        raise KafkaApiError(found.code, found.message)
    return {"configs": [{**entry._asdict(), "source": entry.source.name.lower()} for entry in found]}


async def _altered(
    request: Request, client: ApiClients, kind: ResourceType, name: str, changes: ConfigChanges
) -> Response:
    """Applies the changes and returns the configuration. Other requests of this gateway cannot change it between
    precondition and change.
    """
    async with client.locks.of(kind.name, name):
        if is_conditional(request.headers):
            tag = etag(to_json(await _described(client, kind, name)))
            is_known(request.headers, request.method, tag)  # Problem 412 if a precondition fails
        await _alter(client, kind, name, changes)
        return changed(to_json(await _described(client, kind, name)))


async def _alter(client: ApiClients, kind: ResourceType, name: str, changes: ConfigChanges) -> None:
    wanted = {key: config_text(value) for key, value in changes.configs.items() if value is not None}
    unwanted = [key for key, value in changes.configs.items() if value is None]
    host, port = await address_for(client, kind, name)

    def ask() -> ConfigError | None:
        with Connection(host, port, client.request_timeout_s) as connection:
            return configs.alter(connection, kind, name, wanted, unwanted, validate_only=changes.validate_only)

    refusal = await blocking(client, ask)
    if refusal is not None:
        raise KafkaApiError(refusal.code, refusal.message)


async def address_for(client: ApiClients, kind: ResourceType, name: str) -> tuple[str, int]:
    """Returns the address to send the request to: the broker itself for its configuration, else any broker."""
    brokers = await client.cluster.brokers()
    if kind is not ResourceType.BROKER:
        broker = next(iter(brokers.values()))
    elif int(name) in brokers:
        broker = brokers[int(name)]
    else:
        raise Problem(404, f"there is no broker {name}")
    return broker.host, broker.port


def config_text(value: str | float | bool | None) -> str:
    """Formats a value as Kafka does: booleans in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)
