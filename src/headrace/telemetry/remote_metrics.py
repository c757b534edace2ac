"""Asks another process of the node for its figures and checks, by the socket that both were told."""

import asyncio
import json
import socket
from typing import NamedTuple

from headrace.telemetry import health
from headrace.telemetry.exporter import DOCUMENT_PATH
from headrace.telemetry.metric_catalog import BY_NAME
from headrace.telemetry.metrics import MetricFamily, from_document

# A broker that needs longer is in trouble, and the scraper would give up soon after.
ANSWER_SECONDS_MAX = 5.0
# Ten times what a broker with all its series says.
DOCUMENT_BYTES_MAX = 16 * 1024 * 1024
_REQUEST = f"GET {DOCUMENT_PATH} HTTP/1.1\r\nhost: headrace\r\n\r\n".encode()


class RemoteTelemetry(NamedTuple):
    families: list[MetricFamily]
    checks: health.Checks


class NoAnswer(Exception):
    """It did not respond: it is starting, gone, or held up."""


async def ask(name: str) -> RemoteTelemetry:
    """What the process that listens as `name` tells; Silent says why there is nothing."""
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
    """Connected at once or not at all, as sockets of one machine are; uvloop cannot do it itself without a file."""
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
