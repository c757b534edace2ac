"""ASGI middleware that every request passes first: origin check, limits, tracing, metrics, and the direct route of
produce requests, which bypasses FastAPI.

The origin check rejects requests of foreign web pages. A browser lets any page post plain text to localhost without a
preflight request and only hides the response. A modifying request with an Origin header is therefore rejected unless
the page was served from this address. Programs other than browsers send no Origin.

Every failed request gets a problem document.
"""

import re
from collections.abc import Awaitable, Callable
from time import perf_counter
from urllib.parse import unquote_to_bytes, urlsplit

from headrace.api.rest.clients import ApiClients
from headrace.api.rest.errors import HttpResponse, Problem, problem_of
from headrace.api.rest.http import Disconnected, Message, Receive, Scope, Send, header, held
from headrace.api.rest.metrics import NO_ROUTE, HttpMetrics
from headrace.api.rest.produce import produce
from headrace.telemetry.tracing import CARRIED, Tracer

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def check_origin(scope: Scope) -> None:
    origin = header(scope, b"origin")
    site = header(scope, b"sec-fetch-site")
    if origin is None and site in (None, b"none", b"same-origin"):
        return
    if origin is not None and _is_ours(origin.decode("latin-1"), scope):
        return
    raise Problem(403, "requests from other web pages are not taken; there is no cross-origin access (CORS)")


def _is_ours(origin: str, scope: Scope) -> bool:
    """Whether the page was served from the address that the request was sent to. A foreign DNS name that resolves to
    loopback does not count (DNS rebinding).
    """
    host = (header(scope, b"host") or b"").decode("latin-1")
    try:
        page, here = urlsplit(origin), urlsplit(f"//{host}")
        if page.netloc.lower() != here.netloc.lower():
            return False
        served_at = scope.get("server") or ("", 0)
        return here.hostname in _LOOPBACK_NAMES or not str(served_at[0]).startswith(("127.", "::1"))
    except ValueError:
        return False


App = Callable[[Scope, Receive, Send], Awaitable[None]]

PRODUCE_PATH = re.compile(rb"(?:/api/v1)?/topics/([^/]+)/messages")
# Each request in flight holds a task and perhaps a body. Requests beyond the limit get 503.
REQUESTS_MAX = 4_000
PRODUCE_ROUTE = "/topics/{topic}/messages"
V1 = "/api/v1"
# Status in the metrics of a request whose client disconnected before the response, as in nginx's logs.
GONE = 499


class RequestGate:
    def __init__(self, app: App, services: Callable[[], ApiClients], figures: HttpMetrics) -> None:
        self._app, self._services, self._figures = app, services, figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._figures.under_way += 1
        holding = held(scope)
        began = perf_counter()
        status = GONE
        try:
            status = await self._serve(scope, receive, send)
        finally:
            holding.resize(0)
            self._figures.under_way -= 1
            self._figures.served(scope["method"], route_of(scope), status, perf_counter() - began)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Serves the request and returns the status of the response."""
        try:
            if self._figures.under_way > REQUESTS_MAX:
                raise Problem(503, f"{REQUESTS_MAX:,} requests are in flight; retry later", retriable=True)
            if scope["method"] not in ("GET", "HEAD"):
                check_origin(scope)
            hot = PRODUCE_PATH.fullmatch(scope["raw_path"]) if scope["method"] == "POST" else None
            if hot is None:
                return await self._pass_on(scope, receive, send)
            scope["route"] = PRODUCE_ROUTE
            answer = await produce(self._services(), topic_of(hot[1]), scope, receive)
        except Disconnected:
            return GONE
        except Exception as error:
            answer = problem_of(error).answer(scope["path"])
        await respond(send, answer, keep=answer.status < 400 or _rest_is_small(scope))
        return answer.status

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> int:
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            status = status or message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            # FastAPI raises an unexpected exception again after it has logged it and sent the response.
            if not status:
                raise
        return status or GONE


def route_of(scope: Scope) -> str:
    """Returns the path template of the OpenAPI document, never the requested path, so that labels stay bounded."""
    route = scope.get("route")
    if route is None:
        return NO_ROUTE
    path: str = route if isinstance(route, str) else route.path
    return V1 + path if scope["path"].startswith(V1) and not path.startswith(V1) else path


def topic_of(raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise Problem(404, "no topic has a name like that") from None


def _rest_is_small(scope: Scope) -> bool:
    """Whether the rest of a rejected request's body is small enough to be read and dropped. If not, the connection is
    closed.
    """
    announced = header(scope, b"content-length") or b""
    return announced.isdigit() and len(announced) < len("1000000")


async def respond(send: Send, answer: HttpResponse, *, keep: bool = True) -> None:
    head = answer.head()
    if not keep:
        head.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": head})
    await send({"type": "http.response.body", "body": answer.body})


FAILED_FROM = 500  # Statuses below are client errors, which OpenTelemetry's conventions do not record as span errors.


class TracingMiddleware:
    def __init__(self, front: RequestGate, tracer: Tracer) -> None:
        self._front, self._tracer = front, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._front(scope, receive, send)
            return
        sent = {name: header(scope, name.encode()) for name in CARRIED}
        carrier = {name: value.decode("latin-1") for name, value in sent.items() if value is not None}
        with self._tracer.span(scope["method"], carrier) as span:

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set("http.response.status_code", status)
                    if status >= FAILED_FROM:
                        span.failed(str(status))
                await send(message)

            try:
                await self._front(scope, receive, noting)
            finally:
                route = route_of(scope)
                span.name(f"{scope['method']} {route}")
                span.set("http.request.method", scope["method"])
                span.set("http.route", route)
                span.set("url.path", scope["path"])
