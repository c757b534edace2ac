"""Client for requests to other brokers; each request has a connection to itself while it is in flight.

A broker reads the next request of a connection after the response to a slow one. So a connection carries one request
at a time, and a slow or failed request affects no other. Connections are opened on demand, up to CONNECTIONS_MAX per
broker.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.client.aio.broker_connection import ConnectionLost, Peer
from headrace.client.sync.transport import encode_request
from headrace.model.errors import HeadraceError, ProtocolError

if TYPE_CHECKING:
    from headrace.broker.server import Broker

Response = TypeVar("Response")

# As long as clients wait for a response. The caller retries what takes longer.
ANSWER_SECONDS_MAX = 10.0
PROMPT_ANSWER_SECONDS_MAX = 1.0  # a broker on the same network responds within a millisecond
# Per broker. Producers that begin transactions at the same moment need one each; further requests wait for a slot.
CONNECTIONS_MAX = 32
IDLE_MAX = 4  # kept open for the next requests; bursts are rare
CLIENT_ID = "broker"


class Pool:
    """Connections to one broker."""

    def __init__(self, connect: Callable[[], Awaitable[Peer]]) -> None:
        self._connect = connect
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._idle: list[Peer] = []
        self._busy: set[Peer] = set()
        self._is_closed = False

    async def exchange(self, frame: bytes, read: Callable[[bytes], Response]) -> Response:
        """Sends a frame on an exclusive connection; returns what `read` makes of the response."""
        async with self._slots:
            peer = await self._take()
            self._busy.add(peer)
            try:
                response = read(bytes(await peer.exchange(frame)))
            except BaseException:
                peer.close()  # also after a timeout: the late response would be read as that of the next request
                raise
            finally:
                self._busy.discard(peer)
            self._release(peer)
            return response

    async def _take(self) -> Peer:
        while self._idle:
            peer = self._idle.pop()
            if not peer.is_lost:
                return peer
            peer.close()
        peer = await self._connect()
        if self._is_closed:
            peer.close()
            raise ConnectionLost("connections to other brokers are closed")
        return peer

    def _release(self, peer: Peer) -> None:
        if self._is_closed or len(self._idle) >= IDLE_MAX:
            peer.close()
        else:
            self._idle.append(peer)

    def close(self) -> None:
        self._is_closed = True
        for peer in [*self._idle, *self._busy]:
            peer.close()
        self._idle.clear()


class Peers:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._pools: dict[int, Pool] = {}
        self._is_closed = False

    async def call(
        self, node_id: int, request: Any, response_type: type[Response], timeout_s: float = ANSWER_SECONDS_MAX
    ) -> Response:
        """Sends one of kio's request messages to a broker and returns the response.

        Raises ConnectionLost if no response arrives; whether the broker applied the request is then unknown.
        """

        def read(answer: bytes) -> Response:
            return _read(node_id, answer, response_type)

        try:
            async with asyncio.timeout(timeout_s):
                return await self._pool(node_id).exchange(encode_request(request, 1, CLIENT_ID), read)
        except (ConnectionLost, TimeoutError) as error:
            raise ConnectionLost(f"broker {node_id} does not respond: {error or 'timed out'}") from error

    async def ask(self, node_id: int, request: Any, response_type: type[Response]) -> Response | None:
        """Like `call`, for requests whose response is optional: returns None if there is none within a second."""
        try:
            async with asyncio.timeout(PROMPT_ANSWER_SECONDS_MAX):
                return await self.call(node_id, request, response_type)
        except (HeadraceError, TimeoutError):
            return None

    def _pool(self, node_id: int) -> Pool:
        if self._is_closed:
            raise ConnectionLost("connections to other brokers are closed")
        if node_id not in self._pools:
            self._pools[node_id] = Pool(lambda: self._broker.connect(node_id))
        return self._pools[node_id]

    def close(self) -> None:
        self._is_closed = True
        for pool in self._pools.values():
            pool.close()


def _read(node_id: int, answer: bytes, response_type: type[Response]) -> Response:
    from kio.serial import entity_reader
    from kio.serial.errors import DecodeError

    try:
        _, used = entity_reader(response_type.__header_schema__)(answer, 0)  # type: ignore[attr-defined]
        response, _ = entity_reader(response_type)(answer[used:], 0)  # type: ignore[type-var]
    except (DecodeError, IndexError, ValueError) as error:
        raise ProtocolError(f"the response of broker {node_id} is malformed: {error}") from error
    return response
