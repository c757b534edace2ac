"""The store on three real etcd members: killed, paused, cut down to a minority, compacted, and behind the others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress

import pytest

from headrace.config.etcd_address import EtcdAddress
from headrace.metadata.etcd import messages
from headrace.metadata.etcd import messages as protobuf
from headrace.metadata.lease import Session
from headrace.metadata.store import Change, Conflict, OutcomeUnknown, Snapshot, Unavailable
from headrace.metadata.watch import follow
from headrace.process.runtime import SystemClock
from headrace.testing.local.etcd import LocalEtcd
from tests.integration.etcd_kit import COUNTER, Incrementer, ask_raw, connect, seen_until

PATIENCE_S = 30
SESSION_MS = 20_000  # far longer than an election, and than what holds a busy machine up


@pytest.fixture
def etcd() -> Iterator[LocalEtcd]:
    with LocalEtcd(members=3) as members:
        yield members


async def leader_of(etcd: LocalEtcd) -> int:
    """The member that leads, by its place among the endpoints. They may vote while one after the other is asked."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for place, endpoint in enumerate(etcd.endpoints):
                with suppress(Unavailable):
                    if await leads(endpoint):
                        return place
            await asyncio.sleep(0.05)


async def leads(endpoint: str) -> bool:
    reply = list(protobuf.fields(await ask_raw(EtcdAddress(endpoints=(endpoint,)), messages.STATUS, b"")))
    header = next(encoded for field, _, encoded in reply if field == 1)
    own_id = next(number for field, number, _ in protobuf.fields(header) if field == 2)
    return own_id == next((number for field, number, _ in reply if field == 4), 0)


@asynccontextmanager
async def kept_alive(session: Session) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """As a broker keeps its session. What it gives waits for a renewal that was asked for from now on."""
    keeping = asyncio.create_task(session.keep_alive())

    async def renewed() -> None:
        now_ms = SystemClock().monotonic_ms()
        async with asyncio.timeout(PATIENCE_S):
            while session.holds_until_ms < now_ms + SESSION_MS:
                assert not keeping.done(), "the lease is over"
                await asyncio.sleep(0.05)

    try:
        yield renewed
        assert not keeping.done(), "the lease is over"
    finally:
        keeping.cancel()


async def test_when_the_member_in_use_dies_another_is_asked(etcd: LocalEtcd) -> None:
    place = (await leader_of(etcd) + 1) % 3
    store = await connect(etcd.endpoints[place], *etcd.endpoints)
    await store.commit({}, {"/a": b"1"})
    etcd.kill(place)
    assert (await store.load("/a")).entries["/a"].value == b"1"
    await store.commit({}, {"/a": b"2"})
    await store.close()


async def test_whoever_follows_misses_nothing_when_its_member_dies(etcd: LocalEtcd) -> None:
    leader = await leader_of(etcd)
    place = (leader + 1) % 3
    follower, writer = await connect(etcd.endpoints[place], *etcd.endpoints), await connect(etcd.endpoints[leader])
    async with aclosing(follow(follower, "/")) as news, asyncio.timeout(30):
        assert isinstance(await anext(news), Snapshot)
        for number in range(10):
            if number == 5:
                etcd.kill(place)
            expected = Change(await writer.commit({}, {"/a": str(number).encode()}), {"/a": str(number).encode()})
            assert await anext(news) == expected
    await follower.close()
    await writer.close()


async def test_d11_additions_are_neither_lost_nor_doubled_while_leaders_are_killed(etcd: LocalEtcd) -> None:
    stores = [await connect(*etcd.endpoints[place:], *etcd.endpoints[:place]) for place in range(3)]
    adders = [Incrementer(store) for store in stores]
    watcher = await connect(*etcd.endpoints)
    every = asyncio.create_task(seen_until(watcher, 90))

    async def add(adder: Incrementer) -> None:
        while not every.done():
            await adder.add_one()

    async with asyncio.timeout(90):
        tasks = [asyncio.create_task(add(adder)) for adder in adders]
        for _ in range(2):
            await asyncio.sleep(0.3)
            victim = await leader_of(etcd)
            etcd.kill(victim)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(etcd.restart, victim)
        seen = await every
        await asyncio.gather(*tasks)
    acknowledged = [value for adder in adders for value in adder.acknowledged]
    unknown = [value for adder in adders for value in adder.unknown]
    assert len(acknowledged) == len(set(acknowledged)), "one value, one adder"
    assert seen == sorted(set(seen)), "each once, in order"
    final = int((await watcher.load(COUNTER)).entries[COUNTER].value)
    assert set(range(1, final + 1)) <= set(acknowledged) | set(unknown), "nobody else has added"
    for store in (*stores, watcher):
        await store.close()


async def test_a_paused_member_is_given_up_and_its_commit_counts_at_most_once(etcd: LocalEtcd) -> None:
    store = await connect(*etcd.endpoints)
    version = await store.commit({}, {"/a": b"1"})
    etcd.pause(0)
    with pytest.raises(OutcomeUnknown):
        await store.commit({"/a": version}, {"/a": b"first try"})
    second = await store.commit({"/a": version}, {"/a": b"second try"})
    etcd.resume(0)
    with pytest.raises(Conflict):
        await store.commit({"/a": version}, {"/a": b"third try"})
    for endpoint in etcd.endpoints:  # the request that waited in the paused member has been refused by now
        other = await connect(endpoint)
        assert await other.commit({"/a": second}, {}) == second
        await other.close()
    await store.close()


async def test_a_watch_through_a_paused_member_moves_when_a_renewal_notices(etcd: LocalEtcd) -> None:
    leader = await leader_of(etcd)
    follower = (leader + 1) % 3
    store, writer = await connect(etcd.endpoints[follower], *etcd.endpoints), await connect(etcd.endpoints[leader])
    async with aclosing(follow(store, "/a")) as news, asyncio.timeout(30):
        await anext(news)
        waiting = asyncio.ensure_future(anext(news))
        session = await Session.open(store, SystemClock(), 20_000)
        etcd.pause(follower)
        revision = await writer.commit({}, {"/a": b"1"})
        await session.renew()
        assert await waiting == Change(revision, {"/a": b"1"})
    await store.close()
    await writer.close()


async def test_a_paused_member_does_not_cost_a_session(etcd: LocalEtcd) -> None:
    place = (await leader_of(etcd) + 1) % 3
    store = await connect(etcd.endpoints[place], *etcd.endpoints)
    session = await Session.open(store, SystemClock(), SESSION_MS)
    async with kept_alive(session) as renewed:
        etcd.pause(place)
        await renewed()
    await store.close()


async def test_without_a_majority_nothing_is_changed_and_all_goes_on_afterwards(etcd: LocalEtcd) -> None:
    store = await connect(etcd.endpoints[0])
    version = await store.commit({}, {"/a": b"1"})
    etcd.kill(1)
    etcd.kill(2)
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await store.commit({"/a": version}, {"/a": b"2"})
    with pytest.raises(Unavailable):
        await store.load("/a")
    await asyncio.to_thread(etcd.restart, 1)
    entry = (await store.load("/a")).entries["/a"]
    await store.commit({"/a": entry.version}, {"/a": b"3"})
    await store.close()


async def test_a_watch_ends_when_its_member_has_lost_the_others(etcd: LocalEtcd) -> None:
    store = await connect(etcd.endpoints[0])
    start = (await store.load("/")).revision
    etcd.kill(1)
    etcd.kill(2)
    with pytest.raises(Unavailable):
        async with aclosing(store.watch("/", start)) as changes, asyncio.timeout(30):
            await anext(changes)
    await store.close()


async def test_d11_whoever_was_away_over_a_compaction_begins_anew(etcd: LocalEtcd) -> None:
    leader = await leader_of(etcd)
    place = (leader + 1) % 3
    store, writer = await connect(etcd.endpoints[place]), await connect(etcd.endpoints[leader])
    async with aclosing(follow(store, "/a")) as news, asyncio.timeout(60):
        await anext(news)
        waiting = asyncio.ensure_future(anext(news))
        etcd.kill(place)
        await writer.commit({}, {"/a": b"1"})
        last = await writer.commit({}, {"/a": b"2"})
        compaction = protobuf.integer(1, last) + protobuf.integer(2, 1)
        await ask_raw(EtcdAddress(endpoints=(etcd.endpoints[leader],)), "/etcdserverpb.KV/Compact", compaction)
        await asyncio.to_thread(etcd.restart, place)
        everything = await waiting
        assert isinstance(everything, Snapshot)
        assert everything.entries["/a"].value == b"2"
    await store.close()
    await writer.close()


async def test_a_lease_survives_the_death_of_etcds_leader(etcd: LocalEtcd) -> None:
    place = await leader_of(etcd)
    store = await connect(*etcd.endpoints)
    session = await Session.open(store, SystemClock(), SESSION_MS)
    await store.commit({}, {"/brokers/1": b"here"}, session.lease)
    async with kept_alive(session) as renewed:
        etcd.kill(place)
        await renewed()
        assert session.holds()
    assert "/brokers/1" in (await store.load("/brokers/")).entries
    await store.close()
