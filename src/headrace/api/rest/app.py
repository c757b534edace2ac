"""Builds the application: routes, error documents, the OpenAPI document, and start and close of the Kafka clients."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from headrace import __version__
from headrace.api.rest.clients import THREADS_MAX, ApiClients, RebalanceReader
from headrace.api.rest.errors import Problem, problem_of
from headrace.api.rest.gate import GONE, V1, RequestGate
from headrace.api.rest.http import Disconnected
from headrace.api.rest.metrics import HttpMetrics
from headrace.api.rest.routes import (
    cluster,
    configs,
    consumers,
    group_offsets,
    groups,
    health,
    messages,
    metrics,
    pipelines,
    streams,
    topics,
    transactions,
)
from headrace.api.rest.schemas import complete_openapi
from headrace.client.core.errors import KafkaApiError, UnknownOutcomeError
from headrace.client.librdkafka import BrokerUnreachable
from headrace.config.settings import GatewaySettings
from headrace.model.errors import HeadraceError

# Paths of the first API version without the `/api/v1` prefix. They return the same documents.
SHORT_PATHS = (topics.short, messages.short, group_offsets.short, health.short, metrics.short)
FULL = (
    topics.short,
    topics.full,
    configs.full,
    messages.short,
    messages.full,
    group_offsets.short,
    groups.full,
    consumers.full,
    streams.full,
    transactions.full,
    pipelines.full,
    cluster.full,
    health.full,
)

_DESCRIPTION = """\
REST API for topics, messages and consumer groups of a Kafka-compatible broker.

All paths are under `/api/v1`; the most common ones also work without it. Errors are
[problem documents](https://www.rfc-editor.org/rfc/rfc9457) with Kafka's error code and `retriable`.
"""


def build_app(
    settings: GatewaySettings,
    bootstrap: str,
    request_timeout_ms: int,
    read_rebalances: RebalanceReader,
    neighbours: Mapping[str, str],
) -> tuple[FastAPI, RequestGate]:
    """Returns the FastAPI application and the request gate in front of it."""
    figures = HttpMetrics()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        # Python's default pool has a few threads more than there are CPUs. Requests to an unresponsive broker would
        # occupy all of them.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS_MAX))
        app.state.services = ApiClients.start(
            settings, bootstrap, request_timeout_ms, read_rebalances, figures, neighbours
        )
        try:
            yield
        finally:
            await app.state.services.close()

    app = FastAPI(
        title="headrace",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=life,
        openapi_url=f"{V1}/openapi.json",
        docs_url="/docs",
        redoc_url=None,
    )
    app.state.stop = lambda: app.state.services.stop()
    for router in SHORT_PATHS:
        app.include_router(router)
    for router in FULL:
        app.include_router(router, prefix=V1)
    _add_handlers(app)
    complete_openapi(app)
    return app, RequestGate(app, lambda: app.state.services, figures)


def _add_handlers(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> Response:
        return respond(request, problem_of(error))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return respond(request, _invalid(error))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, StarletteHTTPException)
        if isinstance(error, Problem):
            return respond(request, error)
        detail = _HTTP_DETAILS.get(error.status_code, str(error.detail))
        return respond(request, Problem(error.status_code, detail, headers=error.headers))

    async def disconnected(request: Request, error: Exception) -> Response:
        return Response(status_code=GONE)  # counted in the metrics; the connection is closed

    app.add_exception_handler(Disconnected, disconnected)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(StarletteHTTPException, http_error)
    for kind in (KafkaApiError, UnknownOutcomeError, BrokerUnreachable, HeadraceError, Exception):
        app.add_exception_handler(kind, refused)


_HTTP_DETAILS = {
    404: "there is nothing at this path; /docs lists all paths",
    405: "this path does not support this method; /docs lists all paths",
}


def respond(request: Request, problem: Problem) -> Response:
    answer = problem.answer(request.url.path)
    return Response(answer.body, answer.status, dict(answer.headers), answer.media_type)


def _invalid(error: RequestValidationError) -> Problem:
    rows = [{"where": ".".join(map(str, one["loc"])), "what": one["msg"]} for one in error.errors()]
    first = rows[0] if rows else {"where": "request", "what": "invalid"}
    more: dict[str, Any] = {"errors": rows[:20]}
    return Problem(422, f"{first['where']}: {first['what']}", more=more)
