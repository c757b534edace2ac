"""Records the outcome of every call to the metadata store, for metrics and health checks.

Classifies outcomes into those of a usable store and those of an unusable one. The calls are passed on unchanged.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import TypeVar

from headrace.metadata.store import (
    Change,
    Compacted,
    Conflict,
    LeaseExpired,
    LeaseId,
    OutcomeUnknown,
    Snapshot,
    Store,
    StoreClosed,
    Unavailable,
)
from headrace.model.errors import HeadraceError

Result = TypeVar("Result")

SESSION, WRITE, READ, WATCH = "session", "write", "read", "watch"
# The store has processed the request: it is usable.
_PROCESSED = (Conflict, Compacted, LeaseExpired)


class StoreMetrics:
    """Errors by operation, and the reason for the last failure of a session request or write."""

    __slots__ = ("errors", "session_failure", "write_failure")

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.session_failure: Exception | None = None
        self.write_failure: Exception | None = None

    @property
    def failure(self) -> Exception | None:
        return self.session_failure or self.write_failure

    def succeeded(self, operation: str) -> None:
        if operation == WRITE:
            self.session_failure = self.write_failure = None
        elif operation == SESSION:
            self.session_failure = None
            # A store that rejects writes (etcd without disk space) still renews leases, so that only another write
            # clears that.
            if isinstance(self.write_failure, Unavailable | OutcomeUnknown):
                self.write_failure = None

    def failed(self, operation: str, error: Exception) -> None:
        self.errors[operation] += 1
        if operation == WRITE:
            self.write_failure = error
        elif operation == SESSION:
            self.session_failure = error


class ObservedStore:
    def __init__(self, store: Store, figures: StoreMetrics) -> None:
        self._store = store
        self._figures = figures

    async def load(self, prefix: str) -> Snapshot:
        return await self._observed(READ, self._store.load(prefix))

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        return await self._observed(WRITE, self._store.commit(expect, writes, lease))

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Change, None]:
        try:
            async with aclosing(self._store.watch(prefix, after_revision)) as changes:
                async for change in changes:
                    yield change
        except (StoreClosed, *_PROCESSED):
            raise
        except HeadraceError as error:
            self._figures.failed(WATCH, error)
            raise

    async def grant(self, ttl_ms: int) -> LeaseId:
        return await self._observed(SESSION, self._store.grant(ttl_ms))

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._observed(SESSION, self._store.keep_alive(lease))

    async def revoke(self, lease: LeaseId) -> None:
        await self._store.revoke(lease)

    async def close(self) -> None:
        await self._store.close()

    async def _observed(self, operation: str, call: Awaitable[Result]) -> Result:
        try:
            result = await call
        except StoreClosed:
            raise
        except _PROCESSED:
            self._figures.succeeded(operation)
            raise
        except (HeadraceError, OSError) as error:
            self._figures.failed(operation, error)
            raise
        self._figures.succeeded(operation)
        return result
