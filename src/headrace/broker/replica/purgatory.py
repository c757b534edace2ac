"""Delayed operations of one partition, keyed by the event they wait for: high watermark, flush or new records.

Each completes once; appends complete in offset order.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.replica.partition import Partition

log = logging.getLogger(__name__)


class CommitWatcher(Protocol):
    """A Produce request with acks=all; notified once for each of its partitions."""

    def committed(self) -> None: ...

    def failed(self, partition: "Partition", error: HeadraceError) -> None: ...


class DelayedFetch(Protocol):
    """A Fetch request that waits for more records."""

    def wake(self) -> None: ...

    def give_up(self) -> None:
        """Sends the response now, with the records that are available."""


class CommitFuture:
    """Completes a coroutine's future at the commit."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def committed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def failed(self, partition: "Partition", error: HeadraceError) -> None:
        self.committed()


NOWHERE = -1
# Produce completions per event-loop iteration; about 2 ms of responses. A commit after a disk stall completes hundreds.
NOTIFIED_PER_ITERATION_MAX = 64


class PartitionWatchers:
    def __init__(self) -> None:
        self.appends: deque[tuple[int, CommitWatcher]] = deque()  # by the offset they wait for, ascending
        self._reached = NOWHERE  # high watermark that `appends` have yet to be notified of
        self._is_telling = False  # the next event-loop iteration notifies more of them
        self._syncs: list[tuple[int, asyncio.Future[None]]] = []
        self.awaits_fetch: list[asyncio.Future[None]] = []  # wait for the next fetch of a follower
        self._starts: list[asyncio.Future[None]] = []  # wait for a log start offset to move, here or on a follower
        self.fetches: dict[DelayedFetch, None] = {}  # wait for the high watermark; in order of arrival
        self.replica_fetches: dict[DelayedFetch, None] = {}  # wait for the log end offset

    def on_high_watermark_advanced(self, reached: int) -> None:
        self._reached = reached
        if not self._is_telling:
            self._tell_appends()
        for fetch in list(self.fetches):
            _call(fetch.wake)

    def _tell_appends(self) -> None:
        self._is_telling = False
        appends = self.appends
        for _ in range(NOTIFIED_PER_ITERATION_MAX):
            if not appends or appends[0][0] > self._reached:
                return
            _call(appends.popleft()[1].committed)
        if appends:
            self._is_telling = True
            asyncio.get_running_loop().call_soon(self._tell_appends)

    def on_log_end_advanced(self) -> None:
        if self.replica_fetches:
            for fetch in list(self.replica_fetches):
                _call(fetch.wake)

    def tell_fetched(self) -> None:
        """Notifies waiters that a follower has fetched, or that the ISR has changed."""
        waiting, self.awaits_fetch = self.awaits_fetch, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until_follower_fetches(self) -> None:
        """Returns after a follower's next fetch. Completes the delayed follower fetches, so that it comes soon."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.awaits_fetch.append(future)
        for fetch in list(self.replica_fetches):
            _call(fetch.give_up)
        try:
            await future
        finally:
            with suppress(ValueError):
                self.awaits_fetch.remove(future)  # after a timeout; otherwise it is removed already

    def tell_log_start(self) -> None:
        """Notifies waiters that a log start offset or the ISR has changed."""
        if self._starts:
            waiting, self._starts = self._starts, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def until_log_start_moves(self) -> None:
        """Returns after the next change, or when this broker stops leading."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starts.append(future)
        try:
            await future
        finally:
            with suppress(ValueError):
                self._starts.remove(future)  # after a timeout; otherwise it is removed already

    def on_flush_advanced(self, offset: int) -> None:
        if not self._syncs:
            return
        waiting, self._syncs = self._syncs, []
        for wanted, future in waiting:
            if wanted > offset:
                self._syncs.append((wanted, future))
            elif not future.done():
                future.set_result(None)

    def cut_syncs(self, end: int, synced: int) -> None:
        """Lowers the offsets that waiters for a flush wait for: records above `end` were truncated."""
        self._syncs = [(min(wanted, end), future) for wanted, future in self._syncs]
        self.on_flush_advanced(synced)

    async def until_synced(self, offset: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._syncs.append((offset, future))
        await future

    async def until_committed(self, offset: int) -> None:
        """Returns when the high watermark reaches the offset, or no longer can."""
        place = (offset, CommitFuture(asyncio.get_running_loop().create_future()))
        self.appends.append(place)
        try:
            await place[1].future
        except asyncio.CancelledError:
            # Removed, because waiters for a commit that never happens would accumulate.
            with suppress(ValueError):
                self.appends.remove(place)
            raise

    def forget(self, expired: Container[object]) -> None:
        """Drops waiters that have sent their response. A partition that cannot commit would keep them forever."""
        if any(waiter in expired for _, waiter in self.appends):
            self.appends = deque(one for one in self.appends if one[1] not in expired)

    def dismiss(self, partition: "Partition", error: HeadraceError) -> None:
        """Completes all waiters, with `error` where they take one: leadership or the partition has ended."""
        self._reached = NOWHERE  # later waiters wait for commits of another leader epoch
        appends, self.appends = self.appends, deque()
        for _, waiter in appends:
            _call(partial(waiter.failed, partition, error))
        waiting, self._syncs = self._syncs, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
        self.tell_log_start()
        self.tell_fetched()
        for fetch in [*self.fetches, *self.replica_fetches]:
            _call(fetch.wake)


def _call(notify: Callable[[], None]) -> None:
    """Calls a waiter. Its exception is logged, and affects neither the other waiters nor the append."""
    try:
        notify()
    except Exception:
        log.exception("Notifying a waiter of a partition failed; the other waiters are notified")
