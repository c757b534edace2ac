"""Broker session: a lease in the metadata store, and the session record that is attached to it.

While the lease is renewed, the broker may lead partitions and be in ISRs. When it expires, the record is removed,
and the controller elects other leaders. A broker whose session has expired begins another one.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.core.controller.cluster_control import DuplicateBroker
from headrace.metadata.lease import Session
from headrace.metadata.store import LeaseExpired, LeaseId, OutcomeUnknown, Store, Unavailable
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

RETRY_S = 0.2  # after an error of the metadata store; several retries fit into the shortest session


class BrokerLifecycleManager:
    def __init__(self, store: Store, broker: "Broker") -> None:
        self._store = store
        self._clock = broker.clock
        self._controller = broker.controller
        self._ttl_ms = broker.settings.integer("broker.session.timeout.ms")
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_full = False
        self._confirmed_ms = self._clock.monotonic_ms()  # of the previous session, while there is none

    @property
    def lease(self) -> LeaseId | None:
        """Lease of the session; None while this broker cannot be sure that its session is valid."""
        return self._session.lease if self._session is not None and self._session.holds() else None

    @property
    def age_ms(self) -> int:
        """Time since the metadata store last confirmed this broker's session."""
        confirmed_ms = self._confirmed_ms if self._session is None else self._session.confirmed_ms
        return self._clock.monotonic_ms() - confirmed_ms

    async def begin(self) -> None:
        """Returns when this broker has a session. Retries as long as the metadata store is unavailable."""
        while True:
            try:
                session = await Session.open(self._store, self._clock, self._ttl_ms)
                await self._commit(session.lease)
            except LeaseExpired:
                continue  # the store's response took longer than the session
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("no session yet: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            self._session = session
            return

    def keep(self, superseded: Callable[[], None]) -> None:
        """Starts to renew the session. Calls `superseded` if another process has registered with this broker's id."""
        self._task = asyncio.create_task(self._keep(superseded), name="session")

    async def _keep(self, superseded: Callable[[], None]) -> None:
        while True:
            if self._session is not None:
                await self._session.keep_alive()
                log.warning("the session of this broker is over; beginning another")
                self._confirmed_ms, self._session = self._session.confirmed_ms, None
            try:
                await self.begin()
            except DuplicateBroker as error:
                log.critical("%s", error)
                superseded()
                return
            except HeadraceError as error:
                log.error("no new session: %s", error)
                await asyncio.sleep(RETRY_S)

    async def begin_controlled_shutdown(self) -> None:
        """Commits that this broker is shutting down, so that it is no longer elected."""
        self._is_stopping = True
        await self._say()

    async def say_full(self, is_full: bool) -> None:
        """Commits whether this broker's disk is full. If so, it leads only where no other replica can."""
        self._is_full = is_full
        await self._say()

    async def _say(self) -> None:
        if self.lease is not None:
            await self._commit(self.lease)

    async def _commit(self, lease: LeaseId) -> None:
        """Commits the session with its flags.

        Repeats the commit if the flags change during it, because `_say` commits nothing during `begin`.
        """
        committed = None
        while committed != (self._is_stopping, self._is_full):
            committed = self._is_stopping, self._is_full
            await self._controller.begin_session(lease, stopping=self._is_stopping, full=self._is_full)

    async def end(self) -> None:
        """Ends the session at once, so that other brokers need not wait for its expiration."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._session is not None:
            await self._session.end()
            self._session = None
