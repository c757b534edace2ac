"""The first to see a request: the hot path goes straight to its answer, everything else to FastAPI.

Also decides what no route should have to think about: who may send from a browser, how many requests may be under
way, and that nothing leaves without a problem document when it fails.
"""

import re
from collections.abc import Awaitable, Callable
from time import perf_counter
from urllib.parse import unquote_to_bytes

from headrace.gateway.bodies import Disconnected, Message, Receive, Scope, Send, header, held
from headrace.gateway.figures import NO_ROUTE, HttpFigures
from headrace.gateway.origins import check_origin
from headrace.gateway.problems import Answer, Problem, problem_of
from headrace.gateway.produce import produce
from headrace.gateway.services import Services

App = Callable[[Scope, Receive, Send], Awaitable[None]]

PRODUCE_PATH = re.compile(rb"(?:/api/v1)?/topics/([^/]+)/messages")
# Each holds a task and perhaps a body; a client that opens more at once is told to come back.
REQUESTS_MAX = 4_000
PRODUCE_ROUTE = "/topics/{topic}/messages"
V1 = "/api/v1"
# The status of a request whose client has gone before there was an answer; what nginx writes down for it.
GONE = 499


class Front:
    def __init__(self, app: App, services: Callable[[], Services], figures: HttpFigures) -> None:
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
        """The status of the answer."""
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
            # FastAPI raises again what it has answered and logged as unforeseen.
            if not status:
                raise
        return status or GONE


def route_of(scope: Scope) -> str:
    """The path as it is written in the OpenAPI document: never what the client wrote."""
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
    """After a refusal the rest of the body may still be on its way: a little is read and dropped, else we hang up."""
    announced = header(scope, b"content-length") or b""
    return announced.isdigit() and len(announced) < len("1000000")


async def respond(send: Send, answer: Answer, *, keep: bool = True) -> None:
    head = answer.head()
    if not keep:
        head.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": answer.status, "headers": head})
    await send({"type": "http.response.body", "body": answer.body})
