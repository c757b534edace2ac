"""A broker that the others have given up hangs up on its clients, so that they ask another one.

Cut off from the store, it goes on believing that it leads and coordinates what it did. None of what it is sent can be
committed, so nothing comes of it; but a client that is connected to this broker alone asks this broker alone, also for
who leads, and would wait for as long as the cut lasts. Whoever is hung up on looks around.

Decides when this broker is left out: its session is over, and another broker says so too, or none can be reached; both
at two looks in a row, because who was only asleep has a new session by then. While the store is away for everybody,
nobody learns that sessions end: all go on serving. Who is alone for good, because the others are down, goes on too, and
hangs up less and less often.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.network.inter_broker_client import Peers

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

LOOK_S = 0.5
HANG_UP_AGAIN_S = 2.0  # twice as long each time: a client may find us again before it finds the others
HANG_UP_AGAIN_S_MAX = 60.0


class IsolationMonitor:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._peers = Peers(broker)
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = asyncio.create_task(self._look(), name="left out")

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._peers.close()

    async def _look(self) -> None:
        again_s = HANG_UP_AGAIN_S
        while True:
            is_isolated = await self._is_left_out_for_good()
            self._note(is_isolated)
            if is_isolated:
                self._hang_up()
                await asyncio.sleep(again_s)
                again_s = min(2 * again_s, HANG_UP_AGAIN_S_MAX)
            else:
                again_s = HANG_UP_AGAIN_S
                await asyncio.sleep(LOOK_S)

    async def _is_left_out_for_good(self) -> bool:
        if not await self._is_left_out():
            return False
        await asyncio.sleep(LOOK_S)
        return await self._is_left_out()

    async def _is_left_out(self) -> bool:
        if not self._has_no_session():
            return False
        own_id = self._broker.node_id
        others = [node_id for node_id in self._broker.image.live_brokers() if node_id != own_id]
        told = await asyncio.gather(*(self._counts_us(node_id) for node_id in others))
        return self._has_no_session() and is_left_out(told)  # a session may have begun meanwhile

    def _note(self, is_isolated: bool) -> None:
        """For the health checks: an isolated broker is not ready."""
        if self._broker.membership is not None:
            self._broker.membership.is_isolated = is_isolated

    def _has_no_session(self) -> bool:
        membership = self._broker.membership
        return membership is not None and membership.may_be_fenced

    async def _counts_us(self, node_id: int) -> bool | None:
        """Whether this broker is there, as another one sees it; None if that one cannot be asked."""
        from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
        from kio.schema.describe_cluster.v1.response import DescribeClusterResponse

        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        answer = await self._peers.ask(node_id, request, DescribeClusterResponse)
        return None if answer is None else self._broker.node_id in {row.broker_id for row in answer.brokers}

    def _hang_up(self) -> None:
        connections = list(self._broker.server.connections)
        log.warning("this broker has lost touch with the cluster; hanging up on %d clients", len(connections))
        for connection in connections:
            connection.close(None)


def is_left_out(told: Sequence[bool | None]) -> bool:
    """`told`: for each other broker, whether it counts us, or None. Nobody is left out of a cluster of one."""
    return False in told or (bool(told) and set(told) == {None})
