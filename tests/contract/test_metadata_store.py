"""What every metadata store promises, whatever keeps the facts."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from headrace.metadata.store import (
    KEYS_PER_COMMIT_MAX,
    Change,
    Compacted,
    Conflict,
    LeaseExpired,
    LeaseId,
    Store,
    StoreClosed,
)

if TYPE_CHECKING:
    from tests.contract.conftest import StoreCase

TTL_MS = 2_000  # etcd counts leases in whole seconds
LONG_TTL_MS = 60_000  # where the time of a lease is not what ends it
# A machine that stands still for longer than a lease's time, again and again, has nothing to say about leases.
TRIES_MAX = 10


async def first_changes(changes: AsyncGenerator[Change, None], count: int) -> list[Change]:
    seen: list[Change] = []
    async with asyncio.timeout(10), aclosing(changes) as stream:
        async for change in stream:
            seen.append(change)
            if len(seen) == count:
                break
    return seen


async def values(store: Store, prefix: str = "/") -> dict[str, bytes]:
    return {key: entry.value for key, entry in (await store.load(prefix)).entries.items()}


async def test_a_fresh_store_is_empty(store: Store) -> None:
    assert (await store.load("/")).entries == {}


async def test_load_shows_keys_under_the_prefix_only(store: Store) -> None:
    await store.commit({}, {"/a/1": b"one", "/a/2": b"two", "/b/1": b"other"})
    assert await values(store, "/a/") == {"/a/1": b"one", "/a/2": b"two"}


async def test_the_version_of_a_key_is_the_revision_that_wrote_it_last(store: Store) -> None:
    first = await store.commit({}, {"/a": b"1", "/b": b"1"})
    second = await store.commit({}, {"/b": b"2"})
    snapshot = await store.load("/")
    assert second > first
    assert snapshot.revision == second
    assert {key: entry.version for key, entry in snapshot.entries.items()} == {"/a": first, "/b": second}


async def test_a_snapshot_does_not_change_under_its_reader(store: Store) -> None:
    await store.commit({}, {"/a": b"1"})
    snapshot = await store.load("/")
    await store.commit({}, {"/a": b"2", "/b": b"1"})
    assert [entry.value for entry in snapshot.entries.values()] == [b"1"]


async def test_a_commit_with_matching_versions_happens(store: Store) -> None:
    version = await store.commit({"/a": 0}, {"/a": b"1"})
    await store.commit({"/a": version}, {"/a": b"2"})
    assert await values(store) == {"/a": b"2"}


@pytest.mark.parametrize("stale", [0, 999])
async def test_d11_a_stale_version_is_a_conflict_that_names_the_key(store: Store, stale: int) -> None:
    await store.commit({}, {"/a": b"1"})
    with pytest.raises(Conflict) as conflict:
        await store.commit({"/a": stale}, {"/a": b"2"})
    assert conflict.value.key == "/a"
    assert await values(store) == {"/a": b"1"}


async def test_a_key_that_must_exist_is_a_conflict_when_it_is_gone(store: Store) -> None:
    version = await store.commit({}, {"/a": b"1"})
    await store.commit({}, {"/a": None})
    with pytest.raises(Conflict):
        await store.commit({"/a": version}, {"/a": b"2"})


async def test_one_conflict_stops_the_whole_commit(store: Store) -> None:
    version = await store.commit({}, {"/a": b"1", "/b": b"1"})
    await store.commit({}, {"/b": b"2"})
    before = await store.load("/")
    with pytest.raises(Conflict):
        await store.commit({"/a": version, "/b": version}, {"/a": b"9", "/b": b"9", "/c": b"9"})
    assert await store.load("/") == before


async def test_an_expected_key_guards_without_being_written(store: Store) -> None:
    epoch = await store.commit({}, {"/controller": b"me"})
    await store.commit({"/controller": epoch}, {"/a": b"1"})
    await store.commit({}, {"/controller": b"someone else"})
    with pytest.raises(Conflict):
        await store.commit({"/controller": epoch}, {"/a": b"2"})


async def test_deleting_and_writing_happen_together(store: Store) -> None:
    await store.commit({}, {"/old": b"1"})
    await store.commit({}, {"/old": None, "/new": b"1"})
    assert await values(store) == {"/new": b"1"}


async def test_deleting_what_is_not_there_changes_nothing(store: Store) -> None:
    revision = await store.commit({}, {"/a": b"1"})
    assert await store.commit({}, {"/b": None}) == revision


async def test_empty_and_binary_values_come_back_as_they_were(store: Store) -> None:
    written = {"/empty": b"", "/binary": bytes(range(256))}
    await store.commit({}, written)
    assert await values(store) == written


async def test_a_commit_has_a_limit_of_keys(store: Store) -> None:
    await store.commit({}, {f"/{number}": b"" for number in range(KEYS_PER_COMMIT_MAX)})
    with pytest.raises(ValueError, match="at most"):
        await store.commit({}, {f"/{number}": b"" for number in range(KEYS_PER_COMMIT_MAX + 1)})


async def test_what_is_expected_has_the_same_limit(store: Store) -> None:
    expect = {f"/{number}": 0 for number in range(KEYS_PER_COMMIT_MAX)}
    await store.commit(expect, {"/a": b""})
    with pytest.raises(ValueError, match="at most"):
        await store.commit({**expect, "/one-more": 0}, {"/a": b""})


async def test_a_commit_without_writes_confirms_the_expected_versions(store: Store) -> None:
    revision = await store.commit({}, {"/a": b"1"})
    assert await store.commit({"/a": revision, "/b": 0}, {}) == revision
    with pytest.raises(Conflict):
        await store.commit({"/a": revision, "/b": revision}, {})
    assert (await store.load("/")).revision == revision


async def test_of_racing_commits_on_one_version_exactly_one_wins(store: Store) -> None:
    version = await store.commit({}, {"/a": b"0"})
    racers = (store.commit({"/a": version}, {"/a": str(number).encode()}) for number in range(10))
    outcomes = await asyncio.gather(*racers, return_exceptions=True)
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 9
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1


async def test_a_commit_whose_caller_was_cancelled_happens_whole_or_not_at_all(store: Store) -> None:
    for number in range(20):
        task = asyncio.create_task(store.commit({}, {f"/x{number}": b"1", f"/y{number}": b"1"}))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await store.commit({}, {"/last": b"1"})
    found = await values(store)
    assert found["/last"] == b"1"
    for number in range(20):
        assert (f"/x{number}" in found) == (f"/y{number}" in found)


async def test_a_watch_shows_earlier_and_later_commits_once_each_in_order(store: Store) -> None:
    start = await store.commit({}, {"/a": b"0"})
    await store.commit({}, {"/a": b"1"})
    changes = store.watch("/", start)
    watching = asyncio.create_task(first_changes(changes, 5))
    for number in (2, 3, 4, 5):
        await asyncio.sleep(0)
        await store.commit({}, {"/a": str(number).encode()})
    seen = await watching
    assert [change.writes for change in seen] == [{"/a": str(number).encode()} for number in range(1, 6)]
    revisions = [change.revision for change in seen]
    assert revisions == sorted(set(revisions))


async def test_a_watch_shows_a_commit_whole_and_a_deletion_as_none(store: Store) -> None:
    start = await store.commit({}, {"/a/1": b"1"})
    revision = await store.commit({}, {"/a/1": None, "/a/2": b"2", "/b/1": b"3"})
    (seen,) = await first_changes(store.watch("/a/", start), 1)
    assert seen == Change(revision, {"/a/1": None, "/a/2": b"2"})


async def test_a_watch_skips_commits_outside_its_prefix(store: Store) -> None:
    start = (await store.load("/")).revision
    await store.commit({}, {"/b/1": b"1"})
    await store.commit({}, {"/a/1": b"2"})
    (seen,) = await first_changes(store.watch("/a/", start), 1)
    assert seen.writes == {"/a/1": b"2"}


async def test_snapshot_and_watch_together_lose_nothing_while_others_write(store: Store) -> None:
    chance = random.Random(1)

    async def write(writer: int) -> None:
        for number in range(40):
            await store.commit({}, {f"/{writer}/{chance.randrange(5)}": str(number).encode()})
            if chance.random() < 0.3:
                await store.commit({}, {f"/{writer}/{chance.randrange(5)}": None})

    async def follow() -> dict[str, bytes]:
        snapshot = await store.load("/")
        state = {key: entry.value for key, entry in snapshot.entries.items()}
        async with aclosing(store.watch("/", snapshot.revision)) as changes:
            async for change in changes:
                for key, value in change.writes.items():
                    if value is None:
                        del state[key]
                    else:
                        state[key] = value
                if "/end" in state:
                    return state
        raise AssertionError("the watch ended early")

    async with asyncio.timeout(20):
        writers = [asyncio.create_task(write(writer)) for writer in range(3)]
        followers = [asyncio.create_task(follow()) for _ in range(3)]
        await asyncio.gather(*writers)
        await store.commit({}, {"/end": b""})
        for state in await asyncio.gather(*followers):
            assert state == await values(store)


async def test_d11_a_watcher_behind_the_kept_history_is_told_to_load_again(case: "StoreCase") -> None:
    start = await case.store.commit({}, {"/a": b"0"})
    await case.forget_history()
    with pytest.raises(Compacted):
        await first_changes(case.store.watch("/", start), 1)


@pytest.mark.parametrize("case", ["memory", "sqlite", "local"], indirect=True)
async def test_a_watcher_from_another_stores_future_is_told_to_load_again(case: "StoreCase") -> None:
    start = await case.store.commit({}, {"/a": b"0"})
    with pytest.raises(Compacted):
        await first_changes(case.store.watch("/", start + 1), 1)


class Holder:
    """Who holds a lease, and knows since when: its store may count from a little later, never from earlier."""

    def __init__(self, case: "StoreCase") -> None:
        self.store, self._clock = case.store, case.clock
        self.lease, self.written_at = LeaseId(0), 0
        self._since_ms = 0

    async def take(self) -> None:
        self._since_ms = self._clock.monotonic_ms()
        self.lease = await self.store.grant(TTL_MS)
        self.written_at = await self.store.commit({}, {"/brokers/1": b"here"}, self.lease)

    async def renew(self) -> None:
        asked_ms = self._clock.monotonic_ms()
        await self.store.keep_alive(self.lease)
        self._since_ms = asked_ms

    def must_hold(self) -> bool:
        return self._clock.monotonic_ms() - self._since_ms < TTL_MS


async def lived(case: "StoreCase", live: Callable[[Holder], Awaitable[None]] | None = None) -> Holder:
    """Who has written under a lease and lived so with it. If the lease's time passed meanwhile: another one."""
    for _ in range(TRIES_MAX):
        holder = Holder(case)
        try:
            await holder.take()
            if live is not None:
                await live(holder)
        except (LeaseExpired, AssertionError):
            if holder.must_hold():
                raise
        else:
            return holder
    raise AssertionError(f"the time of {TRIES_MAX} leases was over before they could be looked at")


async def test_keys_under_a_lease_vanish_when_its_time_is_over(case: "StoreCase") -> None:
    await case.store.commit({}, {"/topics/t": b"stays"})

    async def live(_: Holder) -> None:
        await case.let_pass_ms(TTL_MS // 4)
        assert set(await values(case.store)) == {"/brokers/1", "/topics/t"}

    holder = await lived(case, live)
    await case.let_expire(holder.lease, TTL_MS)
    assert set(await values(case.store)) == {"/topics/t"}


async def test_a_lease_kept_alive_lasts_and_ends_for_good(case: "StoreCase") -> None:
    async def live(holder: Holder) -> None:
        for _ in range(3):
            await case.let_pass_ms(TTL_MS // 2)
            await holder.renew()
        assert await values(case.store) == {"/brokers/1": b"here"}

    lease = (await lived(case, live)).lease
    await case.let_expire(lease, TTL_MS)
    with pytest.raises(LeaseExpired):
        await case.store.keep_alive(lease)
    assert await values(case.store) == {}


async def test_a_revoked_lease_takes_its_keys_along_and_may_be_revoked_again(store: Store) -> None:
    lease = await store.grant(LONG_TTL_MS)
    await store.commit({}, {"/a": b"1", "/b": b"1"}, lease)
    await store.revoke(lease)
    await store.revoke(lease)
    assert await values(store) == {}


async def test_a_watcher_sees_a_lease_end(case: "StoreCase") -> None:
    holder = await lived(case)
    await case.let_expire(holder.lease, TTL_MS)
    await case.store.load("/")
    (seen,) = await first_changes(case.store.watch("/", holder.written_at), 1)
    assert seen.writes == {"/brokers/1": None}


async def test_nothing_can_be_written_under_an_ended_lease(case: "StoreCase") -> None:
    lease = await case.store.grant(TTL_MS)
    await case.let_expire(lease, TTL_MS)
    with pytest.raises(LeaseExpired):
        await case.store.commit({}, {"/a": b"1"}, lease)


async def test_a_key_written_again_without_the_lease_outlives_it(store: Store) -> None:
    lease = await store.grant(LONG_TTL_MS)
    await store.commit({}, {"/a": b"1"}, lease)
    await store.commit({}, {"/a": b"2"})
    await store.revoke(lease)
    assert await values(store) == {"/a": b"2"}


async def test_closing_ends_watches_and_refuses_calls(case: "StoreCase") -> None:
    start = (await case.store.load("/")).revision
    watching = asyncio.create_task(first_changes(case.store.watch("/", start), 1))
    await asyncio.sleep(0)
    await case.store.close()
    assert await watching == []
    with pytest.raises(StoreClosed):
        await case.store.load("/")
    await case.store.close()
