"""A broker whose process is gone is noticed by those who were connected to it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.replication import neighbours
from headrace.broker.replication.neighbours import Neighbours
from headrace.core.cluster.values import BrokerInfo
from headrace.model.settings import Listener

LEASE = 77


class Revoked:
    """As much of a store as is asked here."""

    def __init__(self) -> None:
        self.lease = asyncio.get_running_loop().create_future()

    async def revoke(self, lease: int) -> None:
        self.lease.set_result(lease)


def broker_that_knows(neighbour: BrokerInfo) -> Any:
    image = SimpleNamespace(
        live_brokers=lambda: {neighbour.node_id: neighbour},
        brokers={neighbour.node_id: neighbour},
        session_leases={neighbour.node_id: LEASE},
    )
    return SimpleNamespace(node_id=1, image=image, settings=SimpleNamespace(internal_listener="INTERNAL"))


async def test_one_that_was_known_is_gone_when_it_refuses_whatever_it_did_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first look at its port, right after it died, may come to nothing: the machine is busy then."""
    looks = 0
    refuses = neighbours._refuses

    async def unsure_at_first(host: str, port: int) -> bool:
        nonlocal looks
        looks += 1
        return looks > 1 and await refuses(host, port)

    monkeypatch.setattr(neighbours, "_refuses", unsure_at_first)
    monkeypatch.setattr(neighbours, "LOOK_S", 0.01)
    connected = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: connected.set_result(writer), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    store = Revoked()
    neighbour = BrokerInfo(2, 5, (Listener("INTERNAL", host, port),), None)
    watching = Neighbours(broker_that_knows(neighbour), store)  # type: ignore[arg-type]
    watching.start()
    writer = await connected
    server.close()
    writer.close()
    assert await asyncio.wait_for(store.lease, 10) == LEASE
    await watching.stop()
    assert looks > 1
