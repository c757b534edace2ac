"""Minimal HTTP server for Prometheus: GET of a few paths, one response per connection.

Used by processes without another HTTP server (the broker, gRPC): on a configured address, or on an abstract socket
for their gateway. FastAPI would take most of the broker's start time.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headrace.telemetry import health
from headrace.telemetry.metrics import MetricFamily, to_document
from headrace.telemetry.prometheus import content_type_for, render

log = logging.getLogger(__name__)

# A scraper's request has some hundred bytes; an untrusted client's may have any size.
HEAD_BYTES_MAX = 8 * 1024
HEAD_SECONDS_MAX = 5.0
# Two Prometheus servers, an operator and a gateway, several times over. Each connection may hold a page of some hundred
# kilobytes.
CONNECTIONS_MAX = 16
# For the gateway: metrics and checks as JSON, which it merges with its own.
DOCUMENT_PATH = "/telemetry"
JSON = "application/json"


class Telemetry(NamedTuple):
    """Source of a process's metrics and health checks."""

    families: Callable[[], Awaitable[list[MetricFamily]]]
    checks: Callable[[], Awaitable[health.Checks]]


class HttpResponse(NamedTuple):
    status: str
    content_type: str
    body: bytes


NOT_FOUND = HttpResponse("404 Not Found", "text/plain", b"/metrics, /health, /ready and /checks are here\n")
NOT_GET = HttpResponse("405 Method Not Allowed", "text/plain", b"only GET and HEAD\n")
TOO_BUSY = HttpResponse("503 Service Unavailable", "text/plain", b"too many scrapes at once\n")
BAD_REQUEST = HttpResponse("400 Bad Request", "text/plain", b"this is no HTTP request\n")
FAILED = HttpResponse("500 Internal Server Error", "text/plain", b"the log of this process has the rest\n")


class TelemetryServer:
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._servers: list[asyncio.Server] = []
        self._connections = 0

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listens on an address, and returns it with the actual port. Raises OSError if it cannot be used."""
        server = await asyncio.start_server(self._serve, host or None, port, limit=HEAD_BYTES_MAX)
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def listen_for_gateway(self, name: str) -> None:
        """Listens on an abstract socket: a kill leaves no file behind, and only the gateway has its name."""
        self._servers.append(await asyncio.start_unix_server(self._serve, f"\0{name}", limit=HEAD_BYTES_MAX))

    async def close(self) -> None:
        for server in self._servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS_MAX)
            is_head, answer = await self._answer(head)
            writer.write(_head_of(answer) + (b"" if is_head else answer.body))
            await asyncio.wait_for(writer.drain(), HEAD_SECONDS_MAX)
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            pass  # it disconnected, or is too slow for a scraper
        except asyncio.LimitOverrunError:
            writer.write(_head_of(BAD_REQUEST) + BAD_REQUEST.body)
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, head: bytes) -> tuple[bool, HttpResponse]:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return False, BAD_REQUEST
        if words[0] not in ("GET", "HEAD"):
            return False, NOT_GET
        if self._connections > CONNECTIONS_MAX:
            return False, TOO_BUSY
        accept = next((line[7:] for line in lines if line.lower().startswith("accept:")), "")
        try:
            return words[0] == "HEAD", await self._page(words[1].partition("?")[0], accept)
        except Exception:
            log.exception("%s could not be reported", words[1])
            return False, FAILED

    async def _page(self, path: str, accept: str) -> HttpResponse:
        match path:
            case "/metrics":
                content_type = content_type_for(accept)
                families = await self._telemetry.families()
                # In a thread, like the document below: thousands of series take milliseconds, which would delay
                # requests.
                return HttpResponse("200 OK", content_type, await asyncio.to_thread(render, families, content_type))
            case "/health":
                return HttpResponse("200 OK", JSON, b'{"status":"ok"}\n')
            case "/ready":
                reason = health.not_ready_reason(await self._telemetry.checks())
                if reason is not None:
                    return HttpResponse("503 Service Unavailable", JSON, _json({"status": "down", "detail": reason}))
                return HttpResponse("200 OK", JSON, b'{"status":"ok"}\n')
            case "/checks":
                checks = await self._telemetry.checks()
                return HttpResponse(
                    "200 OK", JSON, _json({"status": str(health.worst(checks)), "checks": health.to_document(checks)})
                )
            case path if path == DOCUMENT_PATH:
                families = await self._telemetry.families()
                checks = await self._telemetry.checks()
                return HttpResponse("200 OK", JSON, await asyncio.to_thread(_document, families, checks))
            case _:
                return NOT_FOUND


def _document(families: list[MetricFamily], checks: health.Checks) -> bytes:
    return _json({"families": to_document(families), "checks": health.to_document(checks)})


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _head_of(answer: HttpResponse) -> bytes:
    lines = (
        f"HTTP/1.1 {answer.status}",
        f"content-type: {answer.content_type}",
        f"content-length: {len(answer.body)}",
        "connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
