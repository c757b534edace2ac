import asyncio
from contextlib import aclosing

import pytest

from headrace.metadata.embedded import MemoryStore
from headrace.metadata.lease import Session
from headrace.metadata.store import Change, Snapshot, Unavailable
from headrace.metadata.watch import follow
from headrace.testing.simulation.clock import SimClock
from headrace.testing.simulation.shared_store import StoreConnection


async def test_a_broker_that_is_cut_off_loses_its_lease_and_the_others_see_it() -> None:
    clock = SimClock()
    facts = MemoryStore(clock)
    cut_off, other = StoreConnection(facts), StoreConnection(facts)
    session = await Session.open(cut_off, clock, 2_000)
    start = await cut_off.commit({}, {"/brokers/1": b"here"}, session.lease)
    cut_off.cut()
    with pytest.raises(Unavailable):
        await session.renew()
    clock.advance_ms(2_000)
    assert not session.holds()
    await facts.expire()
    async with aclosing(other.watch("/", start)) as changes:
        assert (await anext(changes)).writes == {"/brokers/1": None}
    await facts.close()


async def test_whoever_follows_over_a_cut_misses_nothing() -> None:
    facts = MemoryStore(SimClock())
    mine, other = StoreConnection(facts), StoreConnection(facts)
    async with aclosing(follow(mine, "/")) as stream:
        assert await anext(stream) == Snapshot({}, 0)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        mine.cut()
        revision = await other.commit({}, {"/a": b"1"})
        await asyncio.sleep(0)
        assert not waiting.done()
        mine.heal()
        async with asyncio.timeout(10):
            assert await waiting == Change(revision, {"/a": b"1"})
    await facts.close()
