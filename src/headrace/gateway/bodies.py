"""Reading what a client sends, within limits: how large, how slow, how deep.

Decides when a body is too much and when it takes too long. Nothing is held beyond the limit, whatever the client
announces or fails to announce.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, ClassVar

import orjson

from headrace.gateway.inflating import inflated, is_compressed
from headrace.gateway.problems import Problem
from headrace.model.errors import ErrorCode

# Bodies in memory at once, over all requests; what is beyond is answered with 503. Those that come in one piece, of a
# few kilobytes, are not counted.
HELD_BYTES_MAX = 256 * 1024 * 1024

_HELD = "headrace.held"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# A client that sends nothing for this long in the middle of a body has gone or means harm.
SILENCE_S_MAX = 20.0
# A body that is not a stream must be here in this time: 16 MiB over a slow line.
WHOLE_BODY_S_MAX = 120.0


class Held:
    """What one request holds of its body, and all requests of the process together."""

    __slots__ = ("_bytes",)
    _all_bytes: ClassVar[int] = 0

    def __init__(self) -> None:
        self._bytes = 0

    def resize(self, size: int) -> None:
        """Problem 503 if there is no room for more. A body alone has room, however large it may be."""
        others = Held._all_bytes - self._bytes
        if size > self._bytes and others and others + size > HELD_BYTES_MAX:
            raise Problem(503, "too many large request bodies at once; try again a little later", retriable=True)
        Held._all_bytes += size - self._bytes
        self._bytes = size


def held(scope: Scope) -> Held:
    """Of this request; `front.py` gives it back at the end."""
    found: Held = scope.setdefault(_HELD, Held())
    return found


class Disconnected(Exception):
    """The client has hung up; there is nobody to answer."""


def header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


async def read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    """The whole body, decompressed; Problem 413 or 408 if it is too large or too slow."""
    _check_announced(scope, bytes_max)
    if is_compressed(header(scope, b"content-encoding")):
        return await _joined(scope, body_parts(scope, receive), bytes_max)
    message = await _next_part(receive, SILENCE_S_MAX)
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):  # nearly always: small bodies come in one piece
        return _checked(body, bytes_max)
    return await _joined(scope, _rest(receive), bytes_max, body)


async def _joined(scope: Scope, parts: AsyncIterator[bytes], bytes_max: int, first: bytes = b"") -> bytes:
    found, size = [first], len(first)
    holding = held(scope)
    holding.resize(size)
    try:
        async with asyncio.timeout(WHOLE_BODY_S_MAX):
            async for part in parts:
                size += len(part)
                if size > bytes_max:
                    raise too_large(bytes_max)
                holding.resize(size)
                found.append(part)
    except TimeoutError:
        raise Problem(408, f"the body was not complete after {WHOLE_BODY_S_MAX:.0f} s") from None
    return _checked(b"".join(found), bytes_max)


def body_parts(scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
    """A body as it comes, decompressed, for streams: nothing but the current part is held."""
    parts = _as_sent(receive)
    return inflated(parts) if is_compressed(header(scope, b"content-encoding")) else parts


async def _as_sent(receive: Receive) -> AsyncIterator[bytes]:
    message = await _next_part(receive, SILENCE_S_MAX)
    yield message.get("body", b"")
    if message.get("more_body", False):
        async for part in _rest(receive):
            yield part


async def _rest(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await _next_part(receive, SILENCE_S_MAX)
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


async def _next_part(receive: Receive, silence_s: float) -> Message:
    try:
        async with asyncio.timeout(silence_s):
            message = await receive()
    except TimeoutError:
        raise Problem(408, f"nothing more of the body came for {silence_s:.0f} s") from None
    if message["type"] == "http.disconnect":
        raise Disconnected
    return message


def announced_bytes(scope: Scope) -> int:
    """How long the body will be, as the client says; 0 if it does not."""
    announced = header(scope, b"content-length") or b""
    return int(announced[:20]) if announced.isdigit() else 0


def _check_announced(scope: Scope, bytes_max: int) -> None:
    if announced_bytes(scope) > bytes_max:
        raise too_large(bytes_max)


def _checked(body: bytes, bytes_max: int) -> bytes:
    if len(body) > bytes_max:
        raise too_large(bytes_max)
    return body


def too_large(bytes_max: int) -> Problem:
    return Problem(
        413,
        f"a request may have {bytes_max:,} bytes; send less at a time, upload a stream (application/x-ndjson), "
        "or raise gateway.body.max.bytes",
        code=ErrorCode.MESSAGE_TOO_LARGE,
    )


def parse_json(body: bytes) -> Any:
    """JSON as orjson reads it: strict UTF-8, at most 1,024 levels deep."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Problem(400, f"the body is not JSON: {error}") from None
