"""Produces a stream of messages, one JSON object per line, at the rate of the broker.

Holds one part of the body and what the producer's queue takes. Memory does not grow with the length of the stream.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson

from headrace.api.rest.clients import ApiClients
from headrace.api.rest.errors import HttpResponse, Problem, problem_of, to_json
from headrace.api.rest.http import Disconnected, Held, Receive, Scope, announced_bytes, body_parts, held, too_large
from headrace.api.rest.messages import Outgoing, outgoing, text_of
from headrace.client.aio.bulk import BulkSend
from headrace.client.aio.client import TopicMetadata
from headrace.client.aio.producer import ANY_PARTITION, NOW
from headrace.client.aio.producer_pool import Acks

# Separator of lines that are parsed together. A JSON string cannot contain a line break, so a line that ends inside a
# string is still rejected.
_BETWEEN = b"\n,"
# Lines parsed one by one before the event loop runs other tasks: a few milliseconds. A compressed body may have
# millions.
LINES_AT_ONCE = 1_000


async def upload(
    services: ApiClients, facts: TopicMetadata, scope: Scope, receive: Receive, acks: Acks | None
) -> HttpResponse:
    progress = BulkSend(services.publisher, acks, bytes_announced=announced_bytes(scope))
    try:
        return await _upload(services, facts, body_parts(scope, receive), progress, held(scope))
    finally:
        await progress.close()


async def _upload(
    services: ApiClients, facts: TopicMetadata, body: AsyncIterator[bytes], progress: BulkSend, holding: Held
) -> HttpResponse:
    lines = _Lines(services.settings.body_bytes_max)
    try:
        async for part in body:
            await _send(services, facts, progress, lines, lines.cut(part))
            holding.resize(lines.rest_bytes)
            await asyncio.sleep(0)  # decompressed parts are available without waiting
        await _send(services, facts, progress, lines, lines.last())
    except Disconnected:
        await progress.finish()
        raise
    except Exception as error:
        await progress.finish()
        problem = problem_of(error)
        problem.more |= {"line": lines.number, "written": progress.acked}
        raise problem from error
    await progress.finish()
    return _answer(facts, progress)


def _answer(facts: TopicMetadata, progress: BulkSend) -> HttpResponse:
    if progress.failed:
        problem = problem_of(progress.failures[0])
        problem.more |= {"written": progress.acked, "failed": progress.failed}
        raise problem
    return HttpResponse(200, to_json({"topic": facts.name, "written": progress.acked}))


class _Lines:
    """Splits parts of any length into lines. Counts them, for the line number of an error."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = b""
        self.number = 0

    def cut(self, part: bytes) -> list[bytes]:
        lines = (self._rest + part).split(b"\n") if self._rest else part.split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > self._bytes_max:
            self.number += 1
            raise too_large(self._bytes_max)
        return lines

    @property
    def rest_bytes(self) -> int:
        """Size of the incomplete last line."""
        return len(self._rest)

    def last(self) -> list[bytes]:
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


async def _send(
    services: ApiClients, facts: TopicMetadata, progress: BulkSend, lines: _Lines, cut: list[bytes]
) -> None:
    """Sends the messages. Messages before an invalid line are sent."""
    together = _all_simple(cut)
    if together is not None:
        lines.number += len(cut)
        await progress.push(facts.name, together)
        return
    ready: list[dict[str, Any]] = []
    try:
        for number, line in enumerate(cut, 1):
            lines.number += 1
            if number % LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not line or line.isspace():
                continue
            message = _parsed(line)
            if isinstance(message, dict):
                ready.append(message)
                continue
            await services.check_partition(facts, message.partition)
            # librdkafka's bulk call supports none of these; it silently ignores a partition.
            if message.headers or message.timestamp_ms != NOW or message.partition != ANY_PARTITION:
                await progress.push(facts.name, ready)
                ready = []
                await progress.push_one(facts.name, message)
            else:
                ready.append(_in_bulk(message))
    finally:
        await progress.push(facts.name, ready)


def _all_simple(lines: list[bytes]) -> list[dict[str, Any]] | None:
    """Returns the messages if librdkafka's bulk call can take every line as it is; None if the lines need to be parsed
    one by one.

    Parses all lines at once, which is twice as fast. Each line is certain to be one object: it begins and ends with a
    brace, and the messages contain only strings, in which no line can end.
    """
    text = _BETWEEN.join(lines)
    if not text.startswith(b"{") or not text.endswith(b"}") or text.count(b"}\n,{") != len(lines) - 1:
        return None
    try:
        found: list[dict[str, Any]] = orjson.loads(b"[%b]" % text)
    except orjson.JSONDecodeError:
        return None  # the line-by-line parser finds the invalid line
    return found if len(found) == len(lines) and all(map(_is_simple, found)) else None


def _is_simple(message: dict[str, Any]) -> bool:
    """Whether the message has only a string value and, optionally, a string key, as most lines do."""
    if type(message.get("value")) is not str:
        return False
    return len(message) == 1 or (len(message) == 2 and type(message.get("key")) is str)


def _parsed(line: bytes) -> dict[str, Any] | Outgoing:
    try:
        given = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise Problem(422, f"not a JSON object: {error}") from None
    if type(given) is dict and _is_simple(given):
        return given
    return outgoing(given, text_of(line, given))


def _in_bulk(message: Outgoing) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if message.key is not None:
        made["key"] = message.key
    if message.value is not None:
        made["value"] = message.value
    return made
