"""What several brokers on one metadata store may count on, and the two helpers that build on the port."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from headrace.metadata.lease import Session
from headrace.metadata.store import Change, Conflict, LeaseExpired, Snapshot, Store, StoreClosed
from headrace.metadata.watch import follow
from headrace.testing.simulation.clock import SimClock
from tests.contract.conftest import SHARED

if TYPE_CHECKING:
    from tests.contract.conftest import StoreCase

TTL_MS = 60_000  # no test here waits for it: the clocks are moved

between_brokers = pytest.mark.parametrize("case", SHARED, indirect=True)


@pytest.fixture
async def others(case: "StoreCase") -> AsyncIterator[list[Store]]:
    """Two more brokers on the facts of `case.store`."""
    assert case.connect is not None
    stores = [await case.connect(), await case.connect()]
    yield stores
    for store in stores:
        await store.close()


async def news(stream: AsyncGenerator[Snapshot | Change, None]) -> Snapshot | Change:
    async with asyncio.timeout(10):
        return await anext(stream)


@between_brokers
async def test_what_one_broker_commits_all_see(store: Store, others: list[Store]) -> None:
    revision = await store.commit({}, {"/a": b"1"})
    for other in others:
        async with aclosing(other.watch("/", revision - 1)) as changes:
            assert await anext(changes) == Change(revision, {"/a": b"1"})
        assert (await other.load("/")).entries["/a"].version == revision


@between_brokers
async def test_of_brokers_that_want_the_same_key_one_gets_it(store: Store, others: list[Store]) -> None:
    leases = {broker: await broker.grant(TTL_MS) for broker in (store, *others)}
    claims = (broker.commit({"/controller": 0}, {"/controller": b"me"}, lease) for broker, lease in leases.items())
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 2
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1


@between_brokers
async def test_a_brokers_keys_vanish_for_all_when_its_lease_ends(case: "StoreCase", others: list[Store]) -> None:
    lease = await others[0].grant(TTL_MS)
    start = await others[0].commit({}, {"/brokers/1": b"here"}, lease)
    await case.let_expire(lease, TTL_MS)
    await case.store.load("/")
    async with aclosing(others[1].watch("/", start)) as changes, asyncio.timeout(10):
        assert (await anext(changes)).writes == {"/brokers/1": None}


@between_brokers
async def test_a_lease_outlives_the_connection_that_asked_for_it(case: "StoreCase", others: list[Store]) -> None:
    lease = await others[0].grant(TTL_MS)
    await others[0].commit({}, {"/brokers/1": b"here"}, lease)
    await others[0].close()
    assert "/brokers/1" in (await case.store.load("/")).entries
    await others[1].keep_alive(lease)


@between_brokers
async def test_closing_one_brokers_store_closes_no_other(store: Store, others: list[Store]) -> None:
    start = (await store.load("/")).revision
    watching = asyncio.ensure_future(anext(others[0].watch("/", start), None))
    await asyncio.sleep(0)
    await others[0].close()
    async with asyncio.timeout(10):
        assert await watching is None
    with pytest.raises(StoreClosed):
        await others[0].load("/")
    await others[1].commit({}, {"/a": b"1"})
    assert "/a" in (await store.load("/")).entries


async def test_following_begins_with_everything_and_goes_on_with_changes(store: Store) -> None:
    first = await store.commit({}, {"/a/1": b"1", "/b": b"1"})
    async with aclosing(follow(store, "/a/")) as stream:
        snapshot = await news(stream)
        assert isinstance(snapshot, Snapshot)
        assert (set(snapshot.entries), snapshot.revision) == ({"/a/1"}, first)
        second = await store.commit({}, {"/a/2": b"2"})
        assert await news(stream) == Change(second, {"/a/2": b"2"})


async def test_following_from_a_forgotten_revision_begins_anew(case: "StoreCase") -> None:
    start = await case.store.commit({}, {"/a": b"0"})
    await case.forget_history()
    async with aclosing(follow(case.store, "/a", start)) as stream:
        snapshot = await news(stream)
        assert isinstance(snapshot, Snapshot)
        assert set(snapshot.entries) == {"/a"}


async def test_following_ends_when_the_store_is_closed(case: "StoreCase") -> None:
    stream = follow(case.store, "/")
    await news(stream)
    ending = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    await case.store.close()
    async with asyncio.timeout(10):
        assert await ending is None


async def test_a_session_stops_believing_in_its_lease_before_the_store_does(case: "StoreCase") -> None:
    clock = SimClock()
    session = await Session.open(case.store, clock, TTL_MS)
    clock.advance_ms(TTL_MS - 1)
    assert session.holds()
    await session.renew()
    clock.advance_ms(TTL_MS)
    assert not session.holds()
    await session.renew()
    assert session.holds()


async def test_a_session_ends_with_its_lease(case: "StoreCase") -> None:
    session = await Session.open(case.store, SimClock(), TTL_MS)
    await case.store.commit({}, {"/brokers/1": b"here"}, session.lease)
    await case.store.revoke(session.lease)
    async with asyncio.timeout(10):
        await session.keep_alive()
    assert not session.holds()
    with pytest.raises(LeaseExpired):
        await session.renew()


async def test_a_session_given_back_takes_its_keys_along(case: "StoreCase") -> None:
    session = await Session.open(case.store, SimClock(), TTL_MS)
    await case.store.commit({}, {"/brokers/1": b"here"}, session.lease)
    await session.end()
    assert not session.holds()
    assert (await case.store.load("/")).entries == {}
