"""Connections of the asyncio client, pooled per broker.

A connection carries one request at a time. Brokers respond to a connection's requests in order, so a waiting fetch
would delay every request behind it; concurrent requests use several connections of the pool. Implements framing,
timeouts and pool limits.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import Struct
from typing import Any, TypeVar

from headrace.client.librdkafka import BrokerUnreachable, ResponseLost
from headrace.client.sync.transport import RESPONSE_BYTES_MAX, encode_request
from headrace.model.errors import HeadraceError, ProtocolError

_LENGTH = Struct(">i")
# With this buffer a fetch of a few megabytes takes a handful of reads instead of a hundred.
_READ_BUFFER_BYTES = 1024 * 1024

Response = TypeVar("Response")


class AsyncConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str) -> None:
        self._reader, self._writer, self._where = reader, writer, where
        self._correlation_id = 0
        self.usable = True

    @classmethod
    async def open(cls, host: str, port: int, timeout_s: float) -> "AsyncConnection":
        where = f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port, limit=_READ_BUFFER_BYTES)
        except OSError as error:  # includes TimeoutError
            raise BrokerUnreachable(f"no broker responds at {where} ({error.strerror or 'no response'})") from error
        return cls(reader, writer, where)

    async def call(self, client_id: str, request: Any, response_type: type[Response], timeout_s: float) -> Response:
        """Sends one of kio's requests and returns the response; raises ResponseLost if there is none.

        A connection whose call failed or was cancelled is not usable any more.
        """
        from kio.serial import entity_reader
        from kio.serial.errors import DecodeError

        self.usable = False
        self._correlation_id += 1
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(encode_request(request, self._correlation_id, client_id))
                frame = await self._read_frame()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ResponseLost(f"the broker at {self._where} did not respond") from error
        try:
            header, used = entity_reader(response_type.__header_schema__)(frame, 0)  # type: ignore[attr-defined]
            if header.correlation_id != self._correlation_id:
                raise ProtocolError("the response has an unexpected correlation id")
            response, _ = entity_reader(response_type)(frame, used)  # type: ignore[type-var]
        except (DecodeError, IndexError, ValueError) as error:
            raise ProtocolError(f"malformed response: {error}") from error
        self.usable = True
        return response

    async def _read_frame(self) -> bytes:
        (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if not 0 < length <= RESPONSE_BYTES_MAX:
            raise ProtocolError(f"the peer announces {length} bytes: it does not speak Kafka's protocol")
        return await self._reader.readexactly(length)

    def close(self) -> None:
        self.usable = False
        self._writer.close()

    @property
    def is_idle(self) -> bool:
        """Whether the connection is usable and the broker has not closed it."""
        return self.usable and not self._reader.at_eof() and not self._writer.is_closing()


Address = tuple[str, int]

# Each waiting fetch uses one; beyond this the broker would run short of file descriptors.
CONNECTIONS_PER_BROKER_MAX = 512
# Idle connections kept open; further ones of a burst are closed after it.
IDLE_PER_BROKER_MAX = 32
CONNECT_TIMEOUT_S = 5.0


class OverloadedError(HeadraceError):
    """The limit of requests in flight is reached; a retry a little later helps."""

    retriable = True


class Pool:
    def __init__(self) -> None:
        self._idle: dict[Address, list[AsyncConnection]] = {}
        self._slots: dict[Address, asyncio.Semaphore] = {}
        self._closed = False

    @asynccontextmanager
    async def borrowed(self, address: Address) -> AsyncIterator[AsyncConnection]:
        slots = self._slots.setdefault(address, asyncio.Semaphore(CONNECTIONS_PER_BROKER_MAX))
        if slots.locked():
            raise OverloadedError(f"{CONNECTIONS_PER_BROKER_MAX} requests to {address[0]}:{address[1]} are in flight")
        async with slots:
            connection = self._take_idle(address) or await AsyncConnection.open(*address, CONNECT_TIMEOUT_S)
            try:
                yield connection
            finally:
                self._give_back(address, connection)

    def _take_idle(self, address: Address) -> AsyncConnection | None:
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()
            if connection.is_idle:
                return connection
            connection.close()
        return None

    def _give_back(self, address: Address, connection: AsyncConnection) -> None:
        idle = self._idle.setdefault(address, [])
        if self._closed or not connection.is_idle or len(idle) >= IDLE_PER_BROKER_MAX:
            connection.close()
        else:
            idle.append(connection)

    def close(self) -> None:
        self._closed = True
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
