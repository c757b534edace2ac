"""Metadata stores inside one process: their common part, and the one in memory.

`EmbeddedStore` serializes commits, expires leases and wakes watchers, on the state of `key_value_state.py`. It
performs no I/O; subclasses add `_persist`. `MemoryStore` keeps the cluster metadata as long as the process runs, for
memory mode and for tests.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, TypeVar

from headrace.metadata.key_value_state import KeyValueState
from headrace.metadata.store import KEYS_PER_COMMIT_MAX, Change, LeaseId, Snapshot, StoreClosed
from headrace.model.clock import Clock

Result = TypeVar("Result")


class EmbeddedStore:
    def __init__(self, clock: Clock, ledger: KeyValueState) -> None:
        self._clock = clock
        self._ledger = ledger
        self._one_at_a_time = asyncio.Lock()
        self._changed = asyncio.Event()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def _persist(self, change: Change, leased: bool) -> None:
        """Returns when the change is durable. Raises if it is not or if its state is unknown."""
        raise NotImplementedError

    async def load(self, prefix: str) -> Snapshot:
        self._check_open()
        await self._end_expired_leases()
        return self._ledger.snapshot(prefix)

    async def commit(
        self,
        expect: Mapping[str, int],
        writes: Mapping[str, bytes | None],
        lease: LeaseId | None = None,
    ) -> int:
        self._check_open()
        await self._end_expired_leases()
        return await self._uninterrupted(self._commit(expect, writes, lease))

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Change, None]:
        position = after_revision
        while not self._closed:
            changed = self._changed
            for change in self._ledger.changes_after(position):
                position = change.revision
                if (seen := change.under(prefix)) is not None:
                    yield seen
            if changed is self._changed:
                await changed.wait()

    async def grant(self, ttl_ms: int) -> LeaseId:
        self._check_open()
        lease = self._ledger.grant(ttl_ms, self._clock.monotonic_ms())
        self._set_expiry_timer()
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        self._check_open()
        await self._end_expired_leases()
        self._ledger.keep_alive(lease, self._clock.monotonic_ms())

    async def revoke(self, lease: LeaseId) -> None:
        self._check_open()
        await self._uninterrupted(self._end([lease]))

    async def expire(self) -> None:
        """Ends expired leases and notifies the watchers.

        A timer of the event loop calls this. Tests with simulated time call it after they advance the clock.
        """
        self._check_open()
        await self._end_expired_leases()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._wake_watchers()

    async def _commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None
    ) -> int:
        async with self._one_at_a_time:
            change = self._ledger.check(expect, writes, lease)
            if change is not None:
                await self._carry_out(change, lease)
            return self._ledger.revision

    async def _carry_out(self, change: Change, lease: LeaseId | None) -> None:
        await self._persist(change, lease is not None)
        self._ledger.apply(change, lease)
        self._wake_watchers()

    async def _uninterrupted(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Shields the work: if the caller is canceled it continues, so that the state in memory matches the disk."""
        return await asyncio.shield(self._start(work))

    def _start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved by the caller; if there is none, the next call meets the same error

    async def _end_expired_leases(self) -> None:
        if self._ledger.leases and self._ledger.expired_leases(self._clock.monotonic_ms()):
            await self._uninterrupted(self._end(None))

    async def _end(self, leases: list[LeaseId] | None) -> None:
        """Deletes the keys of these leases, or of all expired ones, and then the leases."""
        async with self._one_at_a_time:
            if leases is None:
                leases = self._ledger.expired_leases(self._clock.monotonic_ms())
            keys = self._ledger.keys_of(leases)
            for start in range(0, len(keys), KEYS_PER_COMMIT_MAX):
                deletions = dict.fromkeys(keys[start : start + KEYS_PER_COMMIT_MAX])
                await self._carry_out(Change(self._ledger.revision + 1, deletions), None)
            self._ledger.end(leases)

    def _set_expiry_timer(self) -> None:
        """Sets the timer that ends leases on time without a call; no timer if no lease is granted."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        deadline_ms = self._ledger.next_deadline_ms()
        if deadline_ms is not None and not self._closed:
            delay_ms = max(1, deadline_ms - self._clock.monotonic_ms())
            loop = asyncio.get_running_loop()
            self._expiry_timer = loop.call_later(delay_ms / 1000, self._expiry_due)

    def _expiry_due(self) -> None:
        self._start(self._end(None)).add_done_callback(self._expiry_done)

    def _expiry_done(self, task: asyncio.Task[None]) -> None:
        # After a failure the timer is not set again, which avoids a busy loop: the next call retries and reports.
        if not task.cancelled() and task.exception() is None:
            self._set_expiry_timer()

    def _wake_watchers(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the metadata store is closed")


class MemoryStore(EmbeddedStore):
    def __init__(self, clock: Clock, last_lease: int = 0) -> None:
        super().__init__(clock, KeyValueState(last_lease=last_lease))

    async def _persist(self, change: Change, leased: bool) -> None:
        """Does nothing: memory is not durable."""
