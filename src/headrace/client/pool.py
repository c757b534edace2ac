"""Connections to the brokers of a cluster, borrowed for one call and given back.

Decides how many there may be and which of them are kept. Asks nothing of the brokers itself.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.client.wire import AsyncConnection
from headrace.model.errors import HeadraceError

Address = tuple[str, int]

# Each waiting fetch holds one; beyond this a broker's file descriptors become the scarce thing.
CONNECTIONS_PER_BROKER_MAX = 512
# Kept open for the next call; a burst's connections beyond these are closed when it is over.
IDLE_PER_BROKER_MAX = 32
CONNECT_TIMEOUT_S = 5.0


class TooBusy(HeadraceError):
    """Everything that may be under way at once is; trying again a little later helps."""

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
            raise TooBusy(f"{CONNECTIONS_PER_BROKER_MAX} requests to {address[0]}:{address[1]} are in flight")
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
