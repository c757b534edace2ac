"""A lease and its holder's view of it: renewed on time, and never assumed to last longer than in the store.

    session = await Session.open(store, clock, ttl_ms=…)
    await store.commit({…}, {"/headrace/brokers/1": …}, session.lease)
    await session.keep_alive()        returns when the lease is lost; run it as a task
    session.holds()                   False as soon as the lease may have ended: its holder must stop acting on it

The time counts from *before* a renewal was sent. The store starts its own count later, so that the holder stops
first.
"""

import asyncio
import logging
from contextlib import suppress

from headrace.metadata.store import LeaseExpired, LeaseId, Store, StoreClosed
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError

log = logging.getLogger(__name__)

# Three attempts within the lease's time, as in etcd's own client: one lost packet must not cost a lease.
RENEWALS_PER_TTL = 3
# A failed renewal is retried soon: little time is left.
RETRIES_PER_TTL = 20


class Session:
    def __init__(self, store: Store, clock: Clock, lease: LeaseId, ttl_ms: int, asked_ms: int) -> None:
        self.lease = lease
        self._store = store
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._holds_until_ms = asked_ms + ttl_ms
        self.confirmed_ms = asked_ms  # when the latest successful request was sent

    @classmethod
    async def open(cls, store: Store, clock: Clock, ttl_ms: int) -> "Session":
        asked_ms = clock.monotonic_ms()
        return cls(store, clock, await store.grant(ttl_ms), ttl_ms, asked_ms)

    @property
    def holds_until_ms(self) -> int:
        """Time of this process's monotonic clock until which no other process can hold what this lease guards."""
        return self._holds_until_ms

    def holds(self) -> bool:
        return self._clock.monotonic_ms() < self._holds_until_ms

    async def renew(self) -> None:
        """Renews once. Raises LeaseExpired if it has ended, Unavailable if that is unknown."""
        asked_ms = self._clock.monotonic_ms()
        try:
            await self._store.keep_alive(self.lease)
        except LeaseExpired:
            self._holds_until_ms = min(self._holds_until_ms, asked_ms)
            raise
        self._holds_until_ms = max(self._holds_until_ms, asked_ms + self._ttl_ms)
        self.confirmed_ms = asked_ms

    async def keep_alive(self) -> None:
        """Renews until the lease has ended or the store is closed. An unavailable store is retried until then."""
        while True:
            rest_ms = self._ttl_ms / RENEWALS_PER_TTL
            try:
                await self.renew()
            except LeaseExpired:
                log.warning("lease %d is over", self.lease)
                return
            except StoreClosed:
                return
            except HeadraceError as error:
                log.warning("lease %d could not be renewed: %s", self.lease, error)
                rest_ms = self._ttl_ms / RETRIES_PER_TTL
            await asyncio.sleep(rest_ms / 1000)

    async def end(self) -> None:
        """Revokes the lease, which deletes its keys.

        If the store is unavailable, they are deleted when the lease expires.
        """
        self._holds_until_ms = min(self._holds_until_ms, self._clock.monotonic_ms())
        with suppress(HeadraceError):
            await self._store.revoke(self.lease)
