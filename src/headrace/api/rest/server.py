"""The HTTP server: uvicorn on an open socket until SIGTERM or SIGINT, with limits for the size and duration of a
request head and for the number of connections.

Requests over these limits never reach the application, so their responses are written here.
"""

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace.api.rest.app import build_app
from headrace.api.rest.clients import RebalanceReader
from headrace.api.rest.errors import Problem
from headrace.api.rest.gate import TracingMiddleware
from headrace.api.rest.http import has_unread_bytes, note_pipelined, note_transport, report_unread
from headrace.config.settings import GatewaySettings
from headrace.telemetry.tracing import Tracer

# nginx's default: four buffers of 8 KiB. A larger head is a mistake or an attack.
HEAD_BYTES_MAX = 32 * 1024
# From the connection, or the end of the last response, to a complete head.
HEAD_S_MAX = 30.0
# An idle connection costs about 10 KiB, so this many cost a hundred megabytes.
CONNECTIONS_MAX = 10_000


class LimitedProtocol(HttpToolsProtocol):
    _head_bytes = 0
    _in_head = True
    _refused: Problem | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _left_unread = False

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        # The last request, and those before it whose responses had not been sent when it arrived.
        self._pipelined: list[RequestResponseCycle] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            self._refuse(Problem(503, "too many connections; retry later", retriable=True))
            return
        self._expect_head()

    def eof_received(self) -> None:
        self._left_unread = has_unread_bytes(self.transport)
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        requests, self._pipelined = self._pipelined, []
        incomplete = any(not one.response_complete for one in requests)
        super().connection_lost(exc)
        for request in requests:
            if not request.response_complete:  # uvicorn reports the disconnect only to the last request
                request.disconnected = True
                request.message_event.set()
            if incomplete or self._left_unread or exc is not None:
                report_unread(request.scope)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._refuse(_head_too_large())

    def on_headers_complete(self) -> None:
        # The bytes so far may include body bytes. The headers are measured only when the total exceeds the limit.
        if self._head_bytes > HEAD_BYTES_MAX and self._headers_bytes() > HEAD_BYTES_MAX:
            self._refused = _head_too_large()
            raise ValueError("the head is too large")  # ends httptools' parsing; uvicorn then calls send_400_response
        self._in_head = False
        self._stop_timer()
        if self.cycle is None or self.cycle.response_complete:
            self._pipelined = []
        else:
            note_pipelined(self.scope)  # type: ignore[arg-type]
        note_transport(self.scope, self.transport)  # type: ignore[arg-type]
        super().on_headers_complete()
        self._pipelined.append(self.cycle)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_bytes, self._in_head = 0, True  # what follows belongs to the next request

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self._in_head:
            self._expect_head()

    def _headers_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refused or Problem(400, "this is not HTTP/1.1 as it should be"))

    def _expect_head(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_S_MAX, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._head_bytes:
            self._refuse(Problem(408, f"the head of the request was not complete after {HEAD_S_MAX:.0f} s"))
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, problem: Problem) -> None:
        self._stop_timer()
        answer = problem.answer("")
        lines = [b"HTTP/1.1 %d Refused" % answer.status, b"connection: close"]
        lines += [b"%s: %s" % pair for pair in answer.head()]
        self.transport.write(b"\r\n".join([*lines, b"", answer.body]))
        self.transport.close()


def _head_too_large() -> Problem:
    return Problem(431, f"the head of a request may have {HEAD_BYTES_MAX} bytes")


log = logging.getLogger(__name__)

# Longer than pauses of a person at a terminal and idle timeouts of most connection pools.
KEEP_ALIVE_S = 75
# Time for requests in flight to finish, and for streams to end.
GRACEFUL_S = 5
FAILED = 1


def serve(
    settings: GatewaySettings,
    bootstrap: str,
    request_timeout_ms: int,
    http: socket.socket,
    read_rebalances: RebalanceReader,
    neighbours: Mapping[str, str],
    tracer: Tracer | None = None,
) -> int:
    """Runs the server and returns the exit code. `neighbours` maps the node's other processes to their telemetry
    sockets.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # uvicorn logs every start and stop at a lower level
    app, front = build_app(settings, bootstrap, request_timeout_ms, read_rebalances, neighbours)
    config = uvicorn.Config(
        front if tracer is None else TracingMiddleware(front, tracer),
        http=LimitedProtocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACEFUL_S,
    )
    server = Server(config, app.state.stop)
    server.run(sockets=[http])
    return 0 if server.started else FAILED


class Server(uvicorn.Server):
    """A uvicorn server that ends the event streams before it waits for requests in flight."""

    def __init__(self, config: uvicorn.Config, tell_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell_stop = tell_stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles the signals without uvicorn's behavior of raising them again at the end: a requested stop is a
        success.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._tell_stop()
        await super().shutdown(sockets)
