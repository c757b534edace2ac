"""The stores that the contract suite runs on. A new implementation joins by adding a factory here."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.config.etcd_address import EtcdAddress
from headrace.metadata.embedded import MemoryStore
from headrace.metadata.etcd import messages
from headrace.metadata.etcd.failover import Connection
from headrace.metadata.etcd.store import EtcdStore
from headrace.metadata.key_value_state import HISTORY_COMMITS_MAX
from headrace.metadata.sqlite.store import SqliteStore
from headrace.metadata.store import LeaseId, Store
from headrace.metadata.unix_socket.client import UnixSocketStore
from headrace.metadata.unix_socket.server import LocalStoreServer
from headrace.model.clock import Clock
from headrace.process.runtime import SystemClock
from headrace.testing.local.etcd import LocalEtcd
from headrace.testing.simulation.clock import SimClock
from headrace.testing.simulation.shared_store import StoreConnection

EXPIRY_SECONDS_MAX = 30  # after a lease's time is over: etcd needs one, a machine that is busy many


@dataclass
class StoreCase:
    """A fresh, empty store, and how to make happen what its port has no call for.

    `clock`: the one that its leases go by, or one that runs as fast.
    `let_pass_ms`: time passes for its leases (a store with a clock of its own really waits).
    `let_expire`: so much that this lease, which was given so many milliseconds, has ended.
    `forget_history`: it forgets the changes so far, after adding at least one.
    `connect`: another broker's store, with the same facts; None where only one broker can have them.
    """

    store: Store
    clock: Clock
    let_pass_ms: Callable[[int], Awaitable[None]]
    let_expire: Callable[[LeaseId, int], Awaitable[None]]
    forget_history: Callable[[], Awaitable[None]]
    connect: Callable[[], Awaitable[Store]] | None = None
    close: Callable[[], Awaitable[None]] | None = None  # whatever serves the store


async def memory(directory: Path) -> StoreCase:
    clock = SimClock()
    return _embedded(MemoryStore(clock), clock)


async def shared(directory: Path) -> StoreCase:
    """Facts in memory that several brokers of this process share."""
    clock = SimClock()
    facts = MemoryStore(clock)

    async def connect() -> Store:
        return StoreConnection(facts)

    case = _embedded(await connect(), clock)
    case.connect = connect
    return case


async def sqlite(directory: Path) -> StoreCase:
    clock = SimClock()
    return _embedded(await SqliteStore.open(str(directory / "metadata.db"), clock), clock)


async def local(directory: Path) -> StoreCase:
    """Facts behind a socket, as the brokers of one machine share them; in this process, so that time can be moved."""
    clock = SimClock()
    facts = MemoryStore(clock)
    server = LocalStoreServer(facts)
    folder = tempfile.mkdtemp()  # tmp_path may be too long for a socket's address
    path = f"{folder}/metadata.sock"
    await server.start(path)

    async def connect() -> Store:
        return await UnixSocketStore.connect(path)

    async def close() -> None:
        await server.close()
        await facts.close()
        shutil.rmtree(folder)

    case = _embedded(await connect(), clock)
    case.connect, case.close = connect, close
    return case


def _embedded(store: Store, clock: SimClock) -> StoreCase:
    async def let_pass_ms(duration_ms: int) -> None:
        clock.advance_ms(duration_ms)

    async def let_expire(lease: LeaseId, ttl_ms: int) -> None:
        clock.advance_ms(ttl_ms)

    async def forget_history() -> None:
        for number in range(HISTORY_COMMITS_MAX + 1):
            await store.commit({}, {"/forgotten": str(number).encode()})

    return StoreCase(store, clock, let_pass_ms, let_expire, forget_history)


async def etcd(server: LocalEtcd) -> StoreCase:
    """A namespace of its own in an etcd that the tests of this process share."""
    address = EtcdAddress(endpoints=server.endpoints, namespace=f"/{uuid4().hex}")

    async def connect() -> Store:
        return await EtcdStore.connect(address)

    store = await connect()

    async def let_pass_ms(duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)

    async def let_expire(lease: LeaseId, ttl_ms: int) -> None:
        # etcd looks for leases that are over twice a second, and then ends them by a commit.
        async with asyncio.timeout(ttl_ms / 1000 + EXPIRY_SECONDS_MAX):
            while lease in await leases_in(address):  # noqa: ASYNC110 - etcd tells nobody
                await asyncio.sleep(0.05)

    async def forget_history() -> None:
        await store.commit({}, {"/forgotten": b"1"})
        await compact(address, await store.commit({}, {"/forgotten": b"2"}))  # what it names is kept

    return StoreCase(store, SystemClock(), let_pass_ms, let_expire, forget_history, connect)


async def leases_in(address: EtcdAddress) -> set[LeaseId]:
    """Those that still are: also one whose time is over is among them until it is ended, and its keys with it."""
    connection = Connection(address)
    reply = await connection.call("/etcdserverpb.Lease/LeaseLeases", b"")
    await connection.close()
    rows = [encoded for field, _, encoded in messages.fields(reply) if field == 2]
    return {LeaseId(number) for row in rows for field, number, _ in messages.fields(row) if field == 1}


async def compact(address: EtcdAddress, revision: int) -> None:
    """As an operator, or etcd's own auto-compaction, does it."""
    connection = Connection(address)
    await connection.call("/etcdserverpb.KV/Compact", messages.integer(1, revision) + messages.integer(2, 1))
    await connection.close()


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[LocalEtcd]:
    with LocalEtcd() as server:
        yield server


FACTORIES = {"memory": memory, "shared": shared, "local": local, "sqlite": sqlite}


SHARED = ("shared", "local")  # those that several brokers can use at once


@pytest.fixture(params=[*FACTORIES, "etcd"])
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreCase]:
    if request.param == "etcd":
        case = await etcd(request.getfixturevalue("etcd_server"))
    else:
        case = await FACTORIES[request.param](tmp_path)
    yield case
    await case.store.close()
    if case.close is not None:
        await case.close()


@pytest.fixture
def store(case: StoreCase) -> Store:
    return case.store
