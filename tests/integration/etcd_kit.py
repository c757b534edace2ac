"""What the tests against real etcd members share: writers that do not give up, and a watcher that keeps all."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field

from headrace.config.etcd_address import EtcdAddress
from headrace.metadata.etcd.failover import Connection
from headrace.metadata.etcd.store import EtcdStore
from headrace.metadata.store import Conflict, OutcomeUnknown, Snapshot, Store, Unavailable
from headrace.metadata.watch import follow

COUNTER = "/counter"


async def connect(*endpoints: str, namespace: str = "") -> EtcdStore:
    return await EtcdStore.connect(EtcdAddress(endpoints=endpoints, namespace=namespace))


@dataclass
class Incrementer:
    """Adds one to a counter by compare-and-set, again and again; knows which additions surely happened."""

    store: Store
    acknowledged: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)

    async def add_one(self) -> None:
        """Returns after an acknowledged addition."""
        while True:
            try:
                entry = (await self.store.load(COUNTER)).entries.get(COUNTER)
                value, version = (int(entry.value), entry.version) if entry else (0, 0)
                await self.store.commit({COUNTER: version}, {COUNTER: str(value + 1).encode()})
            except (Conflict, Unavailable):
                await asyncio.sleep(0.01)
            except OutcomeUnknown:
                self.unknown.append(value + 1)
            else:
                self.acknowledged.append(value + 1)
                return


async def seen_until(store: Store, last: int) -> list[int]:
    """Every value of the counter that a follower sees, until the last one; a snapshot may skip some."""
    seen: list[int] = []
    async with aclosing(follow(store, COUNTER)) as news:
        async for one in news:
            if isinstance(one, Snapshot):
                seen += [int(entry.value) for entry in one.entries.values()]
            else:
                seen += [int(value) for value in one.writes.values() if value is not None]
            if seen and seen[-1] >= last:
                return seen
    raise AssertionError("the store was closed")


async def ask_raw(address: EtcdAddress, method: str, request: bytes) -> bytes:
    connection = Connection(address)
    try:
        return await connection.call(method, request)
    finally:
        await connection.close()
