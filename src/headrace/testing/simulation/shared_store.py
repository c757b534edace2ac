"""One metadata store for several brokers in one process, each with a connection that can be partitioned.

facts = MemoryStore(clock)
brokers = [StoreConnection(facts) for _ in range(3)]
brokers[0].cut()          # from now on Unavailable; its leases expire
brokers[0].heal()
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from headrace.metadata.store import Change, LeaseId, Snapshot, Store, StoreClosed, Unavailable


class StoreConnection:
    """One broker's connection to a shared metadata store: closing it does not close the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._closed = False
        self._is_cut = False
        self._disturbed = asyncio.Event()  # replaced when set, at a partition or close

    def cut(self) -> None:
        """Partitions the connection in both directions; watches fail."""
        self._is_cut = True
        self._disturb()

    def heal(self) -> None:
        self._is_cut = False

    async def load(self, prefix: str) -> Snapshot:
        self._check()
        return await self._store.load(prefix)

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        self._check()
        return await self._store.commit(expect, writes, lease)

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Change, None]:
        async with aclosing(self._store.watch(prefix, after_revision)) as changes:
            while not self._closed:
                self._check()
                change = await self._undisturbed(changes)
                if change is None:
                    return
                yield change

    async def grant(self, ttl_ms: int) -> LeaseId:
        self._check()
        return await self._store.grant(ttl_ms)

    async def keep_alive(self, lease: LeaseId) -> None:
        self._check()
        await self._store.keep_alive(lease)

    async def revoke(self, lease: LeaseId) -> None:
        self._check()
        await self._store.revoke(lease)

    async def close(self) -> None:
        self._closed = True
        self._disturb()

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed("the connection to the metadata store is closed")
        if self._is_cut:
            raise Unavailable("the metadata store is partitioned from this broker")

    def _disturb(self) -> None:
        disturbed, self._disturbed = self._disturbed, asyncio.Event()
        disturbed.set()

    async def _undisturbed(self, changes: AsyncGenerator[Change, None]) -> Change | None:
        """Returns the next change; None if the connection or the store was closed while waiting for it."""
        news = asyncio.ensure_future(_next(changes))
        disturbed = asyncio.ensure_future(self._disturbed.wait())
        try:
            await asyncio.wait((news, disturbed), return_when=asyncio.FIRST_COMPLETED)
            if not disturbed.done():
                return news.result()
            if not self._closed:
                raise Unavailable("the metadata store was partitioned from this broker")
            return None
        finally:
            disturbed.cancel()
            news.cancel()
            await asyncio.wait((news, disturbed))


async def _next(changes: AsyncGenerator[Change, None]) -> Change | None:
    """Returns the next change; None if the store was closed."""
    return await anext(changes, None)
