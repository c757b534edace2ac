"""What the stores inside this process share beyond the port: bounded history, leases that end by themselves."""

import asyncio
import time
from contextlib import aclosing

import pytest

from headrace.metadata import key_value_state
from headrace.metadata.embedded import MemoryStore
from headrace.metadata.key_value_state import KeyValueState
from headrace.metadata.store import Change, Compacted, LeaseExpired
from headrace.model.errors import StorageError
from headrace.testing.simulation.clock import SimClock


class RealClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class FailingStore(MemoryStore):
    failing = False

    async def _persist(self, change: Change, leased: bool) -> None:
        if self.failing:
            raise StorageError("the disk is gone")


async def test_a_lease_ends_on_time_even_if_nobody_calls() -> None:
    store = MemoryStore(RealClock())
    lease = await store.grant(ttl_ms=20)
    revision = await store.commit({}, {"/a": b"1"}, lease)
    async with asyncio.timeout(5), aclosing(store.watch("/", revision)) as changes:
        change = await anext(changes)
    assert change.writes == {"/a": None}
    with pytest.raises(LeaseExpired):
        await store.keep_alive(lease)
    await store.close()


async def test_a_lease_kept_alive_outlives_the_timer_that_was_set_for_it() -> None:
    store = MemoryStore(clock := SimClock())
    lease = await store.grant(ttl_ms=20)
    await store.commit({}, {"/a": b"1"}, lease)
    clock.advance_ms(15)
    await store.keep_alive(lease)
    store._expiry_due()
    clock.advance_ms(15)
    assert set((await store.load("/")).entries) == {"/a"}
    await store.close()


async def test_a_commit_that_could_not_be_made_durable_has_not_happened() -> None:
    store = FailingStore(SimClock())
    revision = await store.commit({}, {"/a": b"1"})
    store.failing = True
    with pytest.raises(StorageError):
        await store.commit({}, {"/a": b"2"})
    snapshot = await store.load("/")
    assert (snapshot.entries["/a"].value, snapshot.revision) == (b"1", revision)
    store.failing = False
    assert await store.commit({}, {"/a": b"3"}) == revision + 1
    await store.close()


async def test_a_lease_whose_keys_could_not_be_deleted_is_tried_again_by_the_next_call() -> None:
    store = FailingStore(clock := SimClock())
    lease = await store.grant(ttl_ms=20)
    await store.commit({}, {"/a": b"1"}, lease)
    clock.advance_ms(20)
    store.failing = True
    with pytest.raises(StorageError):
        await store.load("/")
    store.failing = False
    assert (await store.load("/")).entries == {}
    await store.close()


async def test_closing_waits_for_commits_under_way() -> None:
    store = MemoryStore(SimClock())
    commits = [asyncio.create_task(store.commit({}, {f"/{number}": b"1"})) for number in range(5)]
    await asyncio.sleep(0)
    await store.close()
    assert [await commit for commit in commits] == [1, 2, 3, 4, 5]


def test_history_is_bounded_by_bytes_and_keeps_the_newest_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_value_state, "HISTORY_BYTES_MAX", 1000)
    book = KeyValueState()
    for revision in range(1, 11):
        book.apply(Change(revision, {"/a": b"x" * 298}))
    assert [change.revision for change in book.changes_after(7)] == [8, 9, 10]
    with pytest.raises(Compacted, match="load again"):
        book.changes_after(6)
    book.apply(Change(11, {"/a": b"x" * 5000}))
    assert [change.revision for change in book.changes_after(10)] == [11]


@pytest.mark.parametrize("ttl_ms", [0, -1])
def test_a_lease_needs_a_duration(ttl_ms: int) -> None:
    with pytest.raises(ValueError, match="over before it begins"):
        KeyValueState().grant(ttl_ms, now_ms=0)
