"""Closes client connections while this broker is isolated from the cluster, so that clients connect to another one.

A broker that is partitioned from the metadata store still assumes that it leads and coordinates as before. Nothing
that it receives can be committed, but a client that is connected only to this broker also gets its metadata here,
and would wait for as long as the partition lasts. A client whose connection is closed connects to another broker.

A broker is isolated if its session has expired, and another broker confirms it or none can be reached. Both must
hold in two checks in a row, because a broker that was only paused has a new session by then. While the metadata
store is unavailable to all brokers, none of them observes that sessions expire, and all keep serving. A broker that
is alone because the others are down keeps serving, and closes connections at increasing intervals.
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
HANG_UP_AGAIN_S = 2.0  # doubled each time: a client may reconnect here before it finds another broker
HANG_UP_AGAIN_S_MAX = 60.0


class IsolationMonitor:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._peers = Peers(broker)
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = asyncio.create_task(self._look(), name="isolation monitor")

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
        return self._has_no_session() and is_left_out(told)  # a session may have begun during the calls

    def _note(self, is_isolated: bool) -> None:
        """Records the state for the health checks: an isolated broker is not ready."""
        if self._broker.membership is not None:
            self._broker.membership.is_isolated = is_isolated

    def _has_no_session(self) -> bool:
        membership = self._broker.membership
        return membership is not None and membership.may_be_fenced

    async def _counts_us(self, node_id: int) -> bool | None:
        """Returns whether another broker has a session of this one; None if it cannot be reached."""
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
    """Returns whether another broker lacks a session of this one, or all others are unreachable (None).

    False in a cluster without other brokers.
    """
    return False in told or (bool(told) and set(told) == {None})
