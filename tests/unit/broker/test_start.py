"""How a broker starts while the store of its cluster comes and goes."""

from collections.abc import Mapping

import pytest

from headrace.broker import server as broker_module
from headrace.broker.controller import broker_lifecycle as session_module
from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.metadata.embedded import MemoryStore
from headrace.metadata.store import LeaseId, OutcomeUnknown, Snapshot, Unavailable
from headrace.process.runtime import SystemClock
from headrace.storage.io.memory_file_system import MemoryFiles


class Shaky(MemoryStore):
    """Away for the first questions of each kind; commits are made although nobody hears of them."""

    def __init__(self, clock: SystemClock, times: int) -> None:
        super().__init__(clock)
        self._left = dict.fromkeys(("load", "grant", "commit"), times)

    def _is_away(self, question: str) -> bool:
        self._left[question] -= 1
        return self._left[question] >= 0

    async def load(self, prefix: str) -> Snapshot:
        if self._is_away("load"):
            raise Unavailable("no leader")
        return await super().load(prefix)

    async def grant(self, ttl_ms: int) -> LeaseId:
        if self._is_away("grant"):
            raise Unavailable("no leader")
        return await super().grant(ttl_ms)

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        revision = await super().commit(expect, writes, lease)
        if self._is_away("commit"):
            raise OutcomeUnknown("the change may have been made")
        return revision


def broker_on(store: MemoryStore, clock: SystemClock, *, shares_store: bool) -> Broker:
    settings = Settings(listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),), data_dir="/data", storage="memory")
    return Broker(settings, clock, MemoryFiles(), store, shares_store=shares_store)


async def test_a_broker_of_a_cluster_waits_for_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "REGISTER_AGAIN_S", 0)
    monkeypatch.setattr(session_module, "RETRY_S", 0)
    clock = SystemClock()
    broker = broker_on(Shaky(clock, times=7), clock, shares_store=True)
    await broker.start()
    try:
        assert list(broker.image.live_brokers()) == [broker.node_id]
    finally:
        await broker.stop()


async def test_a_broker_with_a_store_of_its_own_says_what_is_wrong_with_it() -> None:
    clock = SystemClock()
    broker = broker_on(Shaky(clock, times=7), clock, shares_store=False)
    try:
        with pytest.raises(Unavailable):
            await broker.start()
    finally:
        await broker.stop()
