"""Connection from one broker to another, on the event loop: frames are sent and received in request order.

Implements framing only. Responses are received into the buffer in which they are parsed: fetches by followers are
most of a cluster's network traffic.
"""

import asyncio
from collections import deque
from struct import Struct
from typing import Protocol, cast

from headrace.model.errors import ErrorCode, HeadraceError

# The largest response of a broker is a fetch: `replica.fetch.response.max.bytes`, or a single batch that is larger.
RESPONSE_BYTES_MAX = 256 * 1024 * 1024
CONNECT_SECONDS_MAX = 5.0  # a broker on the same network responds within a millisecond, unless its host is down
_SIZE = Struct(">i")


class ConnectionLost(HeadraceError):
    """The other broker cannot be reached, or the connection was lost before the response.

    Whether the broker applied the request is unknown.
    """

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


class Peer(Protocol):
    """Connection to another broker."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be closed: an `exchange` would raise ConnectionLost."""

    async def exchange(self, frame: bytes) -> memoryview:
        """Sends a frame, size included; returns the response without its size. Raises ConnectionLost."""

    def close(self) -> None:
        """Closes the connection; pending exchanges raise ConnectionLost."""


class TcpPeer(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[memoryview]] = deque()
        self._size = bytearray(_SIZE.size)
        self._frame: bytearray | None = None  # None while the size is read
        self._filled = 0
        self._reason = "the connection was closed"

    @classmethod
    async def connect(cls, host: str, port: int) -> "TcpPeer":
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                _, peer = await asyncio.get_running_loop().create_connection(cls, host, port)
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"no broker responds at {host}:{port} ({error or 'timed out'})") from error
        return peer

    @property
    def is_lost(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    async def exchange(self, frame: bytes) -> memoryview:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost(self._reason)
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._transport.write(frame)
        return await future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        target = self._size if self._frame is None else self._frame
        return memoryview(target)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._frame is None:
            if self._filled == _SIZE.size:
                self._begin_frame()
        elif self._filled == len(self._frame):
            frame, self._frame, self._filled = self._frame, None, 0
            self._answered(memoryview(frame))

    def _begin_frame(self) -> None:
        (size,) = _SIZE.unpack(self._size)
        if not 0 < size <= RESPONSE_BYTES_MAX or not self._waiting:
            self._reason = f"unexpected response of {size} bytes: the peer is not a Kafka broker"
            self.close()
            return
        self._frame, self._filled = bytearray(size), 0

    def _answered(self, frame: memoryview) -> None:
        future = self._waiting.popleft()
        if not future.done():  # cancelled by its caller otherwise
            future.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ConnectionLost(str(exc or self._reason)))
