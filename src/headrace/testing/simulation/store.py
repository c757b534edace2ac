"""A metadata store that all simulated brokers share, each through a handle: with latency and failures.

    store = SimStore(network)
    handle = store.handle(1)         # implements the metadata store interface for node 1

The metadata itself is in the ledger of the real embedded stores. Requests and responses are simulated: a commit may
succeed although its node gets no response, a load may return a slightly older state, a lease expires when its node is
silent for too long. The store is node 0 of the network, so it is partitioned from brokers like any node.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from random import Random

from headrace.core.image.records import CONTROLLER, SESSIONS
from headrace.metadata.key_value_state import KeyValueState
from headrace.metadata.store import (
    Change,
    LeaseId,
    OutcomeUnknown,
    Snapshot,
    Unavailable,
    check_size,
)
from headrace.testing.simulation.network import SimNetwork

STORE = 0
TIMEOUT_S = 1.0  # timeout of a call while the store is unreachable
SNAPSHOTS_KEPT = 8  # how many commits a load may be behind
OLD_LOAD_PROBABILITY = 0.2


class SimStore:
    def __init__(self, network: SimNetwork, random: Random) -> None:
        self.network = network
        self.random = random
        self.ledger = KeyValueState()
        self.changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.snapshots: list[Snapshot] = [self.ledger.snapshot("")]
        self.commits: list[Change] = []

    def handle(self, node: int) -> "SimStoreHandle":
        return SimStoreHandle(self, node)

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def commit(self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None) -> int:
        self.expire()
        change = self.ledger.check(expect, writes, lease)
        if change is not None:
            self._apply(change, lease)
        return self.ledger.revision

    def expire(self) -> None:
        self.end(self.ledger.expired_leases(self.now_ms()))

    def end(self, leases: list[LeaseId]) -> None:
        keys = self.ledger.keys_of(leases)
        if keys:
            self._apply(Change(self.ledger.revision + 1, dict.fromkeys(keys)), None)
        self.ledger.end(leases)

    def _apply(self, change: Change, lease: LeaseId | None) -> None:
        self.ledger.apply(change, lease)
        self.commits.append(change)
        self.snapshots = [*self.snapshots, self.ledger.snapshot("")][-SNAPSHOTS_KEPT:]
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def restore(self, snapshot: Snapshot) -> None:
        """Replaces all metadata by an older snapshot, while no broker runs. Its sessions have expired."""
        entries = snapshot.entries.values()
        kept = [entry for entry in entries if entry.key != CONTROLLER and not entry.key.startswith(SESSIONS)]
        self.ledger = KeyValueState(kept, snapshot.revision + 1, last_lease=self.now_ms())
        self.snapshots = [self.ledger.snapshot("")]

    async def run(self) -> None:
        """Expires leases on time, for as long as this is awaited."""
        while True:
            await asyncio.sleep(0.05)
            self.expire()


class SimStoreHandle:
    def __init__(self, store: SimStore, node: int) -> None:
        self._store = store
        self._network = store.network
        self._node = node
        self._shown = 0
        self.is_dead = False

    async def _there(self) -> None:
        await self._network.awake(self._node)
        await asyncio.sleep(self._network.delay_s())
        if self._network.is_cut(self._node, STORE) or self._network.loses():
            await asyncio.sleep(TIMEOUT_S)
            raise Unavailable("the store cannot be reached")

    async def _back(self) -> bool:
        await asyncio.sleep(self._network.delay_s())
        await self._network.awake(self._node)
        if self._network.is_cut(STORE, self._node) or self._network.loses():
            await asyncio.sleep(TIMEOUT_S)
            return False
        return True

    async def load(self, prefix: str) -> Snapshot:
        await self._there()
        self._store.expire()
        snapshots = [one for one in self._store.snapshots if one.revision >= self._shown]
        old = self._store.random.random() < OLD_LOAD_PROBABILITY
        found = self._store.random.choice(snapshots) if old else snapshots[-1]
        if not await self._back():
            raise Unavailable("the store did not respond")
        self._shown = max(self._shown, found.revision)
        entries = {key: entry for key, entry in found.entries.items() if key.startswith(prefix)}
        return Snapshot(entries, found.revision)

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        check_size(expect, writes)
        await self._there()
        revision = self._store.commit(expect, writes, lease)
        if not await self._back():
            raise OutcomeUnknown("the store did not respond")
        self._shown = max(self._shown, revision)
        return revision

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Change, None]:
        position = after_revision
        while True:
            changed = self._store.changed
            for change in self._store.ledger.changes_after(position):
                await asyncio.sleep(self._network.delay_s())
                await self._network.awake(self._node)
                if self._network.is_cut(STORE, self._node):
                    await asyncio.sleep(TIMEOUT_S)
                    raise Unavailable("the watch was lost")
                position = change.revision
                self._shown = max(self._shown, position)
                if (seen := change.under(prefix)) is not None:
                    yield seen
            if changed is self._store.changed:
                await changed.wait()

    async def grant(self, ttl_ms: int) -> LeaseId:
        await self._there()
        lease = self._store.ledger.grant(ttl_ms, self._store.now_ms())
        if not await self._back():
            raise Unavailable("the store did not respond")
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._there()
        self._store.expire()
        self._store.ledger.keep_alive(lease, self._store.now_ms())
        if not await self._back():
            raise Unavailable("the store did not respond")

    async def revoke(self, lease: LeaseId) -> None:
        await self._there()
        self._store.end([lease])
        if not await self._back():
            raise Unavailable("the store did not respond")

    async def close(self) -> None:
        """Does nothing: the store is shared."""
