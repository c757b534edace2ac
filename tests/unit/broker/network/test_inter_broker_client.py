"""Requests to other brokers: one connection for each that is in flight, none left behind."""

import asyncio
from typing import Any, cast

import pytest
from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.describe_cluster.v1.response import DescribeClusterResponse

from headrace.broker.network.inter_broker_client import CONNECTIONS_MAX, IDLE_MAX, Peers
from headrace.broker.server import Broker
from headrace.client.aio.broker_connection import ConnectionLost
from headrace.model.errors import ProtocolError

REQUEST: Any = DescribeClusterRequest(include_cluster_authorized_operations=False)
RESPONSE = (
    bytes(4) + b"\x00" + bytes(4) + bytes(2) + b"\x00" + b"\x01" + b"\x02c" + bytes(4) + b"\x01" + bytes(4) + b"\x00"
)


class StandInPeer:
    def __init__(self) -> None:
        self.is_lost = False
        self.in_flight = 0
        self.response: asyncio.Future[memoryview] | None = None

    async def exchange(self, frame: bytes) -> memoryview:
        if self.is_lost:
            raise ConnectionLost("closed")
        assert self.response is None, "one request at a time"
        self.response = asyncio.get_running_loop().create_future()
        try:
            return await self.response
        finally:
            self.response = None

    def answer(self, response: bytes = RESPONSE) -> None:
        assert self.response is not None
        self.response.set_result(memoryview(response))

    def close(self) -> None:
        self.is_lost = True
        if self.response is not None and not self.response.done():
            self.response.set_exception(ConnectionLost("closed"))


class StandInBroker:
    def __init__(self) -> None:
        self.connected: list[StandInPeer] = []
        self.may_connect = asyncio.Event()
        self.may_connect.set()

    async def connect(self, node_id: int) -> StandInPeer:
        await self.may_connect.wait()
        self.connected.append(StandInPeer())
        return self.connected[-1]

    @property
    def open(self) -> list[StandInPeer]:
        return [peer for peer in self.connected if not peer.is_lost]


async def iterations(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def broker() -> StandInBroker:
    return StandInBroker()


@pytest.fixture
def peers(broker: StandInBroker) -> Peers:
    return Peers(cast(Broker, broker))


def call(peers: Peers, timeout_s: float = 10.0) -> "asyncio.Task[DescribeClusterResponse]":
    return asyncio.create_task(peers.call(2, REQUEST, DescribeClusterResponse, timeout_s))


async def test_slow_request_does_not_delay_the_next(broker: StandInBroker, peers: Peers) -> None:
    slow, quick = call(peers), call(peers)
    await iterations()
    broker.connected[1].answer()
    await quick
    assert not slow.done()
    broker.connected[0].answer()
    await slow


async def test_failed_request_closes_only_its_own_connection(broker: StandInBroker, peers: Peers) -> None:
    failing, other = call(peers), call(peers)
    await iterations()
    broker.connected[0].close()
    with pytest.raises(ConnectionLost):
        await failing
    assert not other.done()
    broker.connected[1].answer()
    await other


async def test_racing_first_requests_leave_no_connection_open(broker: StandInBroker, peers: Peers) -> None:
    broker.may_connect.clear()
    calls = [call(peers) for _ in range(10)]
    await iterations()
    broker.may_connect.set()
    await iterations()
    for peer in broker.connected:
        peer.answer()
    await asyncio.gather(*calls)
    assert len(broker.open) == IDLE_MAX
    peers.close()
    assert broker.open == []


async def test_connections_to_one_broker_are_bounded(broker: StandInBroker, peers: Peers) -> None:
    calls = [call(peers) for _ in range(CONNECTIONS_MAX + 5)]
    await iterations()
    assert len(broker.connected) == CONNECTIONS_MAX
    while not all(one.done() for one in calls):
        for peer in broker.open:
            if peer.response is not None and not peer.response.done():
                peer.answer()
        await iterations()
    assert len(broker.open) <= IDLE_MAX


@pytest.mark.parametrize("response", [b"", b"\x00\x00", RESPONSE[:7]])
async def test_connection_with_a_malformed_response_is_closed(
    broker: StandInBroker, peers: Peers, response: bytes
) -> None:
    malformed = call(peers)
    await iterations()
    broker.connected[0].answer(response)
    with pytest.raises(ProtocolError):
        await malformed
    assert broker.open == []


async def test_timed_out_and_canceled_requests_close_their_connections(broker: StandInBroker, peers: Peers) -> None:
    with pytest.raises(ConnectionLost):
        await call(peers, 0.001)
    canceled = call(peers)
    await iterations()
    canceled.cancel()
    await asyncio.gather(canceled, return_exceptions=True)
    assert broker.open == []


async def test_idle_connection_that_was_lost_is_replaced(broker: StandInBroker, peers: Peers) -> None:
    first = call(peers)
    await iterations()
    broker.connected[0].answer()
    await first
    broker.connected[0].is_lost = True
    second = call(peers)
    await iterations()
    broker.connected[1].answer()
    await second


async def test_connection_made_during_close_is_closed(broker: StandInBroker, peers: Peers) -> None:
    broker.may_connect.clear()
    late = call(peers)
    await iterations()
    peers.close()
    broker.may_connect.set()
    with pytest.raises(ConnectionLost):
        await late
    assert broker.open == []
    with pytest.raises(ConnectionLost):
        await call(peers)
