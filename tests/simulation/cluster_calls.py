"""As much of a Cluster and of Coordinators as the client's own calls see, over the simulated network.

So that `client/aio/fetch.py` and `client/aio/groups.py` speak to simulated brokers as they do to real ones. Nothing is
tried again here: what to make of a failure is the simulated client's business.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse
from kio.serial import entity_reader
from kio.static.primitive import i8

from headrace.client.aio.broker_connection import ConnectionLost
from headrace.client.core.errors import KafkaApiError
from headrace.client.sync.transport import encode_request
from headrace.model.errors import ErrorCode
from tests.simulation.cluster_clients import PATIENCE_S, Client

Result = TypeVar("Result")
GROUP, TRANSACTION = 0, 1


def check_code(code: int) -> None:
    if code:
        raise KafkaApiError(int(code), ErrorCode(int(code)).name)


class SimCluster:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def call_broker(self, node: int, request: Any, response_type: type[Result], wait_s: float = 0.0) -> Result:
        frame = encode_request(request, 1, "client")
        answer = bytes(await self._client.ask(node, frame, PATIENCE_S + wait_s))
        _, used = entity_reader(response_type.__header_schema__)(answer, 0)  # type: ignore[attr-defined]
        response, _ = entity_reader(response_type)(answer[used:], 0)  # type: ignore[type-var]
        return response

    async def call_leader(
        self, topic: str, index: int, request: Any, response_type: type[Result], wait_s: float = 0.0
    ) -> Result:
        leader = self._client.leader_of(index)
        if leader is None:
            raise ConnectionLost("nobody leads")
        return await self.call_broker(leader, request, response_type, wait_s)

    def forget(self, topic: str) -> None:
        """Nothing is remembered: who leads is asked every time."""


class SimCoordinators:
    def __init__(self, client: Client, key_type: int) -> None:
        self.cluster = SimCluster(client)
        self._client = client
        self._key_type = key_type
        self._known: int | None = None

    async def ask(self, name: str, attempt: Callable[[int], Awaitable[Result]], *, repeatable: bool = True) -> Result:
        """One attempt, `repeatable` or not: members try again themselves."""
        if self._known is None:
            self._known = await self._find(name)
        node, self._known = self._known, None  # known again only if it answers as a coordinator does
        result = await attempt(node)
        self._known = node
        return result

    async def _find(self, name: str) -> int:
        nodes = [node.node_id for node in self._client.world.nodes if node.is_up]
        if not nodes:
            raise ConnectionLost("no broker is there")
        request = FindCoordinatorRequest(key=name, key_type=i8(self._key_type))
        answer = await self.cluster.call_broker(self._client.random.choice(nodes), request, FindCoordinatorResponse)
        check_code(answer.error_code)
        return int(answer.node_id)
