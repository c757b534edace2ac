"""Metrics of the whole node for Prometheus."""

import asyncio

from fastapi import Request, Response

from headrace.api.rest.routing import Client, make_router
from headrace.telemetry.prometheus import content_type_for, render

short = make_router("health")

_TEXT = {"schema": {"type": "string"}, "example": "# TYPE headrace_connections gauge\nheadrace_connections 3\n"}


@short.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": _TEXT, "application/openmetrics-text": _TEXT}}},
)
async def metrics(client: Client, request: Request) -> Response:
    """Returns the metrics of all processes of the node in Prometheus's text format, or as OpenMetrics on request."""
    content_type = content_type_for(request.headers.get("accept", ""))
    families = await client.telemetry.families(client)
    return Response(await asyncio.to_thread(render, families, content_type), media_type=content_type)
