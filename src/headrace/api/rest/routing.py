"""Shared by the routes: typed path parameters, a router with request limits, ETags, awaited admin calls."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute

from headrace.api.rest.clients import ApiClients, services
from headrace.api.rest.errors import MEDIA_TYPE, Problem, to_json
from headrace.api.rest.http import etag, is_known, parse_json, read_body
from headrace.api.rest.messages import PARTITION_MAX
from headrace.client.aio.transport import OverloadedError
from headrace.client.core.errors import UnknownOutcomeError, from_kafka_error
from headrace.client.librdkafka import BrokerUnreachable

Value = TypeVar("Value")

Client = Annotated[ApiClients, Depends(services)]
# Kafka's rule: letters, digits, dot, underscore and dash, at most 249.
TOPIC_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"
TopicName = Annotated[str, Path(pattern=TOPIC_PATTERN, examples=["my-topic"], description="The topic.")]
Partition = Annotated[int, Path(ge=0, le=PARTITION_MAX, examples=[0], description="The partition.")]
BrokerId = Annotated[int, Path(ge=0, le=PARTITION_MAX, examples=[1], description="The broker.")]
# Kafka accepts any text as a group id. This bounds what a client can put into a log line or a path.
GroupId = Annotated[
    str,
    Path(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/]+$", examples=["my-group"], description="The group."),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum rows of one response.")]
After = Annotated[
    str | None, Query(max_length=255, description="Continue after this row: the `next` of the previous response.")
]

PROBLEM: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }
    for status, text in {
        400: "Bad request",
        403: "Forbidden",
        404: "No such topic, partition, group or member",
        408: "Request timeout",
        409: "Conflict",
        412: "If-Match or If-None-Match failed: the resource has changed since it was read",
        413: "Content too large",
        415: "Unsupported media type",
        422: "Unprocessable request",
        429: "Too many requests",
        502: "Unexpected response of the broker",
        503: "Service unavailable; retry",
    }.items()
}


# For documents with an ETag.
NOT_CHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "As the client's If-None-Match has it"}}


class _Request(Request):
    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await read_body(self.scope, self.receive, services(self).settings.body_bytes_max)
        return self._body

    async def json(self) -> Any:
        return parse_json(await self.body())


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_Request(request.scope, request.receive))

        return handle


def make_router(tag: str) -> APIRouter:
    return APIRouter(tags=[tag], route_class=_Route, responses=PROBLEM)


async def settled(future: "Future[Value]") -> Value:
    """Returns the result of an admin call. Raises the Kafka error, or a Problem if librdkafka rejects the arguments."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        return await asyncio.wrap_future(future)
    except KafkaException as error:
        if error.args and isinstance(error.args[0], KafkaError):
            raise from_kafka_error(error.args[0]) from error
        raise
    except ValueError as error:  # librdkafka's validation of the request
        raise Problem(422, str(error)) from error


def tagged(request: Request, document: Any) -> Response:
    """Returns the document with its ETag, or 304 if the client has it already."""
    body = to_json(document)
    tag = etag(body)
    if is_known(request.headers, request.method, tag):
        return Response(status_code=304, headers={"etag": tag})
    return changed(body)


def changed(body: bytes) -> Response:
    """Returns the changed document with its new ETag. Preconditions of the request applied to the old one."""
    return Response(body, media_type="application/json", headers={"etag": etag(body)})


def page(names: list[str], limit: int, after: str | None) -> tuple[list[str], str | None]:
    """Returns a page of the sorted names, and where the next page begins."""
    rest = [name for name in sorted(names) if after is None or name > after]
    return rest[:limit], rest[limit - 1] if len(rest) > limit else None


def document(made: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(made), status, headers, "application/json")


async def blocking(client: ApiClients, call: Callable[[], Value]) -> Value:
    """Runs a blocking call in a thread. Only for rare admin requests that have no asynchronous form."""
    from confluent_kafka import KafkaError, KafkaException

    if client.threads.locked():
        raise OverloadedError("too many admin requests are in flight")
    async with client.threads:
        try:
            return await asyncio.to_thread(call)
        except BrokerUnreachable:
            raise
        except OSError as error:  # an unresponsive broker, or a connection reset
            raise UnknownOutcomeError(f"the broker did not respond ({error.strerror or error})") from error
        except KafkaException as error:
            if error.args and isinstance(error.args[0], KafkaError):
                raise from_kafka_error(error.args[0]) from error
            raise
