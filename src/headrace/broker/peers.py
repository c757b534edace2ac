"""Questions to other brokers: one connection to each that is asked, made when it is first needed."""

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.client.connection import encode_request
from headrace.client.peer import Peer, PeerLost
from headrace.model.errors import HeadraceError, ProtocolError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

Response = TypeVar("Response")

# As long as clients wait for an answer: what takes longer is tried again by whoever asked.
ANSWER_SECONDS_MAX = 10.0
PROMPT_ANSWER_SECONDS_MAX = 1.0  # a broker on the same network answers in a millisecond
CLIENT_ID = "broker"


class Peers:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._connected: dict[int, Peer] = {}

    async def call(self, node_id: int, request: Any, response_type: type[Response]) -> Response:
        """Ask a broker with one of kio's messages. PeerLost: whether it acted is unknown."""
        from kio.serial import entity_reader
        from kio.serial.errors import DecodeError

        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                if node_id not in self._connected:
                    self._connected[node_id] = await self._broker.connect(node_id)
                answer = bytes(await self._connected[node_id].exchange(encode_request(request, 1, CLIENT_ID)))
        except (PeerLost, TimeoutError) as error:
            self._drop(node_id)
            raise PeerLost(f"broker {node_id} does not answer: {error or 'timed out'}") from error
        try:
            _, used = entity_reader(response_type.__header_schema__)(answer, 0)  # type: ignore[attr-defined]
            response, _ = entity_reader(response_type)(answer[used:], 0)  # type: ignore[type-var]
        except (DecodeError, IndexError, ValueError) as error:
            self._drop(node_id)
            raise ProtocolError(f"the answer of broker {node_id} makes no sense: {error}") from error
        return response

    async def ask(self, node_id: int, request: Any, response_type: type[Response]) -> Response | None:
        """The same, for what can be done without an answer: None if there is none in a moment."""
        try:
            async with asyncio.timeout(PROMPT_ANSWER_SECONDS_MAX):
                return await self.call(node_id, request, response_type)
        except (HeadraceError, TimeoutError):
            return None

    def _drop(self, node_id: int) -> None:
        peer = self._connected.pop(node_id, None)
        if peer is not None:
            peer.close()

    def close(self) -> None:
        for node_id in list(self._connected):
            self._drop(node_id)
