"""HTTP requests and responses: bodies, compression, disconnects, conditional requests.

Bodies are read within limits of size, time and nesting. Memory beyond the limit is never used, whatever length the
client announces, and decompressed data is produced in pieces of bounded size.

A client that closes the connection during a response answers the bytes that still arrive with a reset. A response
that the client's kernel has received and its program has not read is detected too if client and gateway share a host
or the client's kernel resets the connection. What a proxy in between has received counts as read.

Conditional requests follow RFC 9110: the ETag of the resource is compared with If-Match and If-None-Match, and
conditional changes of a resource are serialized within this gateway. A request that fails for another reason (404)
fails for that reason.
"""

import asyncio
import fcntl
import hashlib
import re
import socket
import struct
import termios
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

import orjson
from starlette.datastructures import Headers

from headrace.api.rest.errors import Problem
from headrace.model.errors import ErrorCode

# A chunk of a body from the network has 64 KiB and can expand to a thousand times as much.
PIECE_BYTES_MAX = 256 * 1024
# zlib copies the input behind the end of a member. Small inputs bound that cost for thousands of tiny members.
_INPUT_BYTES = 4 * 1024
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_GZIP = frozenset({"gzip", "x-gzip"})  # equivalent in RFC 9110


def is_compressed(content_encoding: bytes | None) -> bool:
    """Returns whether the body is gzip. Problem 415 for any other encoding."""
    names = (content_encoding or b"").decode("latin-1").lower().split(",")
    encodings = [name for one in names if (name := one.strip()) not in ("", "identity")]
    if not encodings:
        return False
    if len(encodings) == 1 and encodings[0] in _GZIP:
        return True
    raise Problem(
        415,
        f"Content-Encoding is {', '.join(encodings)}; send the body as it is, or compress it with gzip once",
        headers={"accept-encoding": "gzip, identity"},
    )


async def inflated(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the decompressed body in pieces of at most PIECE_BYTES_MAX. Problem 400 for incomplete gzip data."""
    try:
        async for piece in _inflated(parts):
            yield piece
    except zlib.error as error:
        raise Problem(400, f"the body is not the gzip data that Content-Encoding announces: {error}") from None


async def _inflated(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    member = zlib.decompressobj(_GZIP_WINDOW)
    async for part in parts:
        for start in range(0, len(part), _INPUT_BYTES):
            rest = part[start : start + _INPUT_BYTES]
            while rest:
                if member.eof:  # gzip data may consist of several members
                    member = zlib.decompressobj(_GZIP_WINDOW)
                piece = member.decompress(rest, PIECE_BYTES_MAX)
                if piece:
                    yield piece
                rest = member.unused_data if member.eof else member.unconsumed_tail
        # After a full piece the decompressor returns its buffered output without further input.
        while not member.eof and (piece := member.decompress(b"", PIECE_BYTES_MAX)):
            yield piece
    if not member.eof:
        raise Problem(400, "the body's gzip data ends in the middle; was the upload interrupted?")


# Request bodies in memory, over all requests; beyond it requests get 503. Bodies that arrive in one piece, of a few
# kilobytes, are not counted.
HELD_BYTES_MAX = 256 * 1024 * 1024

_HELD = "headrace.held"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# A client that sends nothing for this long in the middle of a body has disconnected or is malicious.
SILENCE_S_MAX = 20.0
# A body that is not a stream must be complete within this time: 16 MiB over a slow line.
WHOLE_BODY_S_MAX = 120.0


class Held:
    """Memory held by one request's body, and the total over all requests of the process."""

    __slots__ = ("_bytes",)
    _all_bytes: ClassVar[int] = 0

    def __init__(self) -> None:
        self._bytes = 0

    def resize(self, size: int) -> None:
        """Reserves `size` bytes. Problem 503 if the total exceeds the limit. A single body is accepted whatever its
        size.
        """
        others = Held._all_bytes - self._bytes
        if size > self._bytes and others and others + size > HELD_BYTES_MAX:
            raise Problem(503, "too many large request bodies at once; try again a little later", retriable=True)
        Held._all_bytes += size - self._bytes
        self._bytes = size


def held(scope: Scope) -> Held:
    """Returns the reservation of this request. `gate.py` releases it at the end."""
    found: Held = scope.setdefault(_HELD, Held())
    return found


class Disconnected(Exception):
    """The client has closed the connection; no response can be sent."""


def header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


async def read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    """Returns the whole decompressed body. Problem 413 if it is too large, 408 if it is too slow."""
    _check_announced(scope, bytes_max)
    if is_compressed(header(scope, b"content-encoding")):
        return await _joined(scope, body_parts(scope, receive), bytes_max)
    message = await _next_part(receive, SILENCE_S_MAX)
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):  # the common case: small bodies arrive in one piece
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
    """Yields a decompressed body in the parts in which it arrives, for streams. Holds only the current part."""
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
        raise Problem(408, f"no bytes of the body were received for {silence_s:.0f} s") from None
    if message["type"] == "http.disconnect":
        raise Disconnected
    return message


def announced_bytes(scope: Scope) -> int:
    """Returns the Content-Length; 0 if there is none."""
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
    """Parses JSON with orjson: strict UTF-8, at most 1,024 levels deep. Problem 400 if it is malformed."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Problem(400, f"the body is not JSON: {error}") from None


Result = TypeVar("Result")

_KEY = "headrace.unread"
_PIPELINED = "headrace.pipelined"
_TRANSPORT = "headrace.transport"
# State in the first byte of Linux's tcp_info. A reset leaves TCP_CLOSE.
_TCP_CLOSE = 7
_INT = struct.Struct("i")


def unread(scope: Scope) -> asyncio.Event:
    """Returns an event that is set when the connection ends before the client has read the whole response."""
    event: asyncio.Event = scope.setdefault(_KEY, asyncio.Event())
    return event


async def while_connected(scope: Scope, work: Coroutine[Any, Any, Result]) -> Result:
    """Returns the work's result. Cancels it and raises Disconnected when the client disconnects before it is done."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(unread(scope).wait())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Disconnected
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def report_unread(scope: Scope) -> None:
    """Sets the request's `unread` event. Called when the connection has ended before the client read the response,
    possibly before the request is handled.
    """
    unread(scope).set()


def note_transport(scope: Scope, transport: asyncio.Transport) -> None:
    scope[_TRANSPORT] = transport


def abort(scope: Scope) -> None:
    """Closes the request's connection at once and drops unsent bytes."""
    transport = scope.get(_TRANSPORT)
    if transport is not None:
        transport.abort()


def note_pipelined(scope: Scope) -> None:
    """Marks a request that arrived before the response to its predecessor was sent."""
    scope[_PIPELINED] = True


def check_not_pipelined(scope: Scope) -> None:
    """Problem 409 for a pipelined request: it acknowledges a response that its client cannot have received."""
    if scope.get(_PIPELINED):
        raise Problem(
            409,
            "this request was received before the response to the previous one was sent, so it cannot acknowledge it: "
            "wait for each response of a consumer",
        )


def has_unread_bytes(transport: asyncio.Transport) -> bool:
    """Whether the client closed the connection without reading everything that was sent. Valid only while the socket is
    open.
    """
    if transport.get_write_buffer_size():
        return True
    connection = transport.get_extra_info("socket")
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    (unacknowledged,) = _INT.unpack(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))
    return bool(state == _TCP_CLOSE or unacknowledged > 0)


_TAG = re.compile(r'(?:W/)?"[^"]*"')
_READING = frozenset({"GET", "HEAD"})


class Locks:
    """One lock per resource, held from reading its ETag until the change has been applied."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def of(self, kind: str, name: str) -> asyncio.Lock:
        lock = self._locks.get((kind, name))
        if lock is None:
            lock = self._locks[kind, name] = asyncio.Lock()
        return lock


def etag(body: bytes) -> str:
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def is_conditional(headers: Headers) -> bool:
    return "if-match" in headers or "if-none-match" in headers


def is_known(headers: Headers, method: str, tag: str) -> bool:
    """Returns whether the client has this representation (304). Problem 412 if a precondition fails."""
    wanted, unwanted = headers.getlist("if-match"), headers.getlist("if-none-match")
    if wanted and not _names(wanted, tag, allow_weak=False):
        raise Problem(412, "If-Match names another ETag: it has changed since it was read; read it again")
    is_named = _names(unwanted, tag, allow_weak=True)
    if is_named and method not in _READING:
        raise Problem(412, "If-None-Match names its present ETag, or any")
    return is_named


def _names(lines: list[str], tag: str, *, allow_weak: bool) -> bool:
    """Whether a list of ETags contains this one; `*` matches any."""
    text = ",".join(lines)
    if text.strip() == "*":
        return True
    found = {one.removeprefix("W/") if allow_weak else one for one in _TAG.findall(text)}
    return tag in found
