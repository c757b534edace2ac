"""Requests metrics and health checks from another process of the node, through its abstract socket."""

import asyncio
import json
import socket
from typing import NamedTuple

from headrace.telemetry import health
from headrace.telemetry.exporter import DOCUMENT_PATH
from headrace.telemetry.metric_catalog import BY_NAME
from headrace.telemetry.metrics import MetricFamily, from_document

# A broker that needs longer has a problem, and the scraper would time out soon after.
ANSWER_SECONDS_MAX = 5.0
# Ten times the size for a broker with the maximal number of series.
DOCUMENT_BYTES_MAX = 16 * 1024 * 1024
_REQUEST = f"GET {DOCUMENT_PATH} HTTP/1.1\r\nhost: headrace\r\n\r\n".encode()


class RemoteTelemetry(NamedTuple):
    families: list[MetricFamily]
    checks: health.Checks


class NoAnswer(Exception):
    """The process did not respond: it is starting, has ended, or is blocked."""


async def ask(name: str) -> RemoteTelemetry:
    """Returns the metrics and checks of the process that listens as `name`. Raises NoAnswer with the reason."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            reader, writer = await asyncio.open_unix_connection(sock=_connected(name))
            try:
                writer.write(_REQUEST)
                answer = await _read_all(reader)
            finally:
                writer.close()
    except TimeoutError:
        raise NoAnswer(f"no response within {ANSWER_SECONDS_MAX:.0f} s") from None
    except OSError as error:
        raise NoAnswer(error.strerror or str(error)) from error
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise NoAnswer(head.split(b"\r\n")[0].decode("latin-1"))
    return await asyncio.to_thread(_told, body)


def _told(body: bytes) -> RemoteTelemetry:
    document = json.loads(body)
    return RemoteTelemetry(from_document(document["families"], BY_NAME), health.from_document(document["checks"]))


def _connected(name: str) -> socket.socket:
    """Returns a connected socket, or raises at once, as Unix sockets do.

    uvloop itself supports no abstract sockets.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.connect(f"\0{name}")
    except OSError:
        made.close()
        raise
    return made


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    pieces, size = [], 0
    while piece := await reader.read(256 * 1024):
        pieces.append(piece)
        size += len(piece)
        if size > DOCUMENT_BYTES_MAX:
            raise NoAnswer(f"its metrics have more than {DOCUMENT_BYTES_MAX} bytes")
    return b"".join(pieces)
