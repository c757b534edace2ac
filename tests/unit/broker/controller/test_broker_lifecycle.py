"""What a broker commits with its session."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.controller.broker_lifecycle import BrokerLifecycleManager
from headrace.broker.replication.replica_health import ReplicaHealthMonitor
from headrace.metadata.embedded import MemoryStore
from headrace.testing.simulation.clock import SimClock
from tests.unit.broker.connection_kit import settle


class Controller:
    """Commits a session when the test says so."""

    def __init__(self) -> None:
        self.commits: list[dict[str, bool]] = []
        self.can_commit = asyncio.Event()

    async def begin_session(self, lease: int, **flags: bool) -> None:
        self.commits.append(flags)
        await self.can_commit.wait()


@pytest.fixture
def broker() -> Any:
    reserve = SimpleNamespace(is_full=True)
    reserve.is_short = lambda was: reserve.is_full
    return SimpleNamespace(
        clock=SimClock(),
        controller=Controller(),
        reserve=reserve,
        node_id=1,
        settings=SimpleNamespace(integer=lambda key: 9000),
    )


@pytest.fixture
def session(broker: Any) -> BrokerLifecycleManager:
    return BrokerLifecycleManager(MemoryStore(broker.clock), broker)


@pytest.mark.parametrize("is_full", [True, False])
async def test_disk_that_changes_while_the_session_begins_is_committed(
    broker: Any, session: BrokerLifecycleManager, is_full: bool
) -> None:
    health = ReplicaHealthMonitor(broker, session)
    broker.reserve.is_full = not is_full
    await health.look_at_disk()
    beginning = asyncio.create_task(session.begin())
    await settle()
    broker.reserve.is_full = is_full
    await health.look_at_disk()
    broker.controller.can_commit.set()
    await beginning
    assert [one["full"] for one in broker.controller.commits] == [not is_full, is_full]
    assert session.lease is not None


async def test_shutdown_while_the_session_begins_is_committed(broker: Any, session: BrokerLifecycleManager) -> None:
    beginning = asyncio.create_task(session.begin())
    await settle()
    await session.begin_controlled_shutdown()
    broker.controller.can_commit.set()
    await beginning
    assert [one["stopping"] for one in broker.controller.commits] == [False, True]


async def test_session_without_changes_is_committed_once(broker: Any, session: BrokerLifecycleManager) -> None:
    broker.controller.can_commit.set()
    await session.begin()
    assert len(broker.controller.commits) == 1
