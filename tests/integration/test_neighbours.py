"""A broker whose process is gone is noticed by those who were connected to it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.controller import failure_detector
from headrace.broker.controller import failure_detector as neighbours
from headrace.broker.controller.failure_detector import BrokenConnections, BrokerFailureDetector
from headrace.config.settings import Listener
from headrace.core.image.model import BrokerRegistration, PartitionRegistration

LEASE = 77


class Revoked:
    """As much of a store as is asked here."""

    def __init__(self) -> None:
        self.lease = asyncio.get_running_loop().create_future()

    async def revoke(self, lease: int) -> None:
        self.lease.set_result(lease)


def broker_that_knows(neighbour: BrokerRegistration) -> Any:
    image = SimpleNamespace(
        live_brokers=lambda: {neighbour.node_id: neighbour},
        brokers={neighbour.node_id: neighbour},
        session_leases={neighbour.node_id: LEASE},
        topics={"t": SimpleNamespace(partitions=(PartitionRegistration((2, 1), (2, 1), neighbour.node_id, 0, 0),))},
    )
    settings = SimpleNamespace(internal_listener="INTERNAL")
    server = SimpleNamespace(peer_addresses={})
    return SimpleNamespace(node_id=1, image=image, settings=settings, lost_brokers=BrokenConnections(), server=server)


@pytest.mark.parametrize("look_s", [0.01, 3600.0])
async def test_broker_whose_port_refuses_late_is_gone(monkeypatch: pytest.MonkeyPatch, look_s: float) -> None:
    """The port of a killed process may accept for a moment after its connections broke."""
    looks = 0
    refuses = neighbours._refuses

    async def unsure_at_first(host: str, port: int) -> bool:
        nonlocal looks
        looks += 1
        return looks > 1 and await refuses(host, port)

    monkeypatch.setattr(neighbours, "_refuses", unsure_at_first)
    monkeypatch.setattr(neighbours, "LOOK_S", look_s)
    monkeypatch.setattr(neighbours, "STEADY_S", 3600.0)
    monkeypatch.setattr(failure_detector, "ELECTION_S_MAX", 3600.0)
    connected = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: connected.set_result(writer), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    store = Revoked()
    neighbour = BrokerRegistration(2, 5, (Listener("INTERNAL", host, port),), None)
    broker = broker_that_knows(neighbour)
    watching = BrokerFailureDetector(broker, store)  # type: ignore[arg-type]
    watching.start()
    writer = await connected
    server.close()
    writer.close()
    assert await asyncio.wait_for(store.lease, 10) == LEASE
    assert broker.lost_brokers.node_ids == {2}, "no client should be sent there"
    await watching.stop()
    broker.lost_brokers.close()
    assert looks > 1


async def test_broker_that_only_closed_its_connection_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "STEADY_S", 0.0)
    monkeypatch.setattr(neighbours, "REFUSAL_REST_S", 0.0)
    monkeypatch.setattr(failure_detector, "ELECTION_S_MAX", 3600.0)
    connections: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: connections.put_nowait(writer), "127.0.0.1", 0)
    neighbour = BrokerRegistration(2, 5, (Listener("INTERNAL", *server.sockets[0].getsockname()),), None)
    broker = broker_that_knows(neighbour)
    watching = BrokerFailureDetector(broker, Revoked())  # type: ignore[arg-type]
    changes: asyncio.Queue[str] = asyncio.Queue()
    for name in ("add", "remove"):
        monkeypatch.setattr(broker.lost_brokers, name, noting(changes, name, getattr(broker.lost_brokers, name)))
    watching.start()
    assert await asyncio.wait_for(changes.get(), 10) == "remove"  # connected
    first = await connections.get()
    first.close()
    await first.wait_closed()
    assert await asyncio.wait_for(changes.get(), 10) == "add"
    assert await asyncio.wait_for(changes.get(), 10) == "remove"
    assert not broker.lost_brokers.node_ids
    assert broker.server.peer_addresses == {2: "127.0.0.1"}
    await watching.stop()
    server.close()
    while not connections.empty():
        writer = connections.get_nowait()
        writer.close()
        await writer.wait_closed()


def noting(changes: asyncio.Queue[str], name: str, call: Any) -> Any:
    def noted(*arguments: Any) -> None:
        call(*arguments)
        changes.put_nowait(name)

    return noted
