"""A lease and its holder's view of it: kept alive on time, and never believed in longer than the store does.

    session = await Session.open(store, clock, ttl_ms=…)
    await store.commit({…}, {"/headrace/brokers/1": …}, session.lease)
    await session.keep_alive()        returns when the lease is lost; run it as a task
    session.holds()                   false as soon as the lease may be over: time to stop acting as its holder

Decides how often the lease is renewed and what its holder may believe meanwhile. The time counts from *before* a
renewal was sent: the store starts its own count later, so the holder gives up first.
"""

import asyncio
import logging
from contextlib import suppress

from headrace.metadata.store import LeaseExpired, LeaseId, Store, StoreClosed
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError

log = logging.getLogger(__name__)

# Three chances within the lease's time, as etcd's own client takes them: one lost packet is no reason to lose a lease.
RENEWALS_PER_TTL = 3
# A renewal that failed is tried again soon: the time that is left is short.
RETRIES_PER_TTL = 20


class Session:
    def __init__(self, store: Store, clock: Clock, lease: LeaseId, ttl_ms: int, asked_ms: int) -> None:
        self.lease = lease
        self._store = store
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._holds_until_ms = asked_ms + ttl_ms
        self.confirmed_ms = asked_ms  # when the latest request that the store granted was sent

    @classmethod
    async def open(cls, store: Store, clock: Clock, ttl_ms: int) -> "Session":
        asked_ms = clock.monotonic_ms()
        return cls(store, clock, await store.grant(ttl_ms), ttl_ms, asked_ms)

    @property
    def holds_until_ms(self) -> int:
        """Until then, by this process's monotonic clock, nobody else can hold what this lease guards."""
        return self._holds_until_ms

    def holds(self) -> bool:
        return self._clock.monotonic_ms() < self._holds_until_ms

    async def renew(self) -> None:
        """Once. LeaseExpired if it is over; Unavailable if nobody knows."""
        asked_ms = self._clock.monotonic_ms()
        try:
            await self._store.keep_alive(self.lease)
        except LeaseExpired:
            self._holds_until_ms = min(self._holds_until_ms, asked_ms)
            raise
        self._holds_until_ms = max(self._holds_until_ms, asked_ms + self._ttl_ms)
        self.confirmed_ms = asked_ms

    async def keep_alive(self) -> None:
        """Renew until the lease is over or the store closed. A store that is away is asked again: it may come back."""
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
        """Give the lease back: its keys vanish now. If the store cannot be told, they vanish when the time is over."""
        self._holds_until_ms = min(self._holds_until_ms, self._clock.monotonic_ms())
        with suppress(HeadraceError):
            await self._store.revoke(self.lease)
