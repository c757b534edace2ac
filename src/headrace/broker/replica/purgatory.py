"""Who waits for news of a partition: for a commit, for the disk, for records. Told in order, each once."""

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
    """A Produce with acks=all; told once for each of its partitions."""

    def committed(self) -> None: ...

    def failed(self, partition: "Partition", error: HeadraceError) -> None: ...


class DelayedFetch(Protocol):
    """A Fetch that has not got enough yet."""

    def wake(self) -> None: ...

    def give_up(self) -> None:
        """Send the response now, with what there is."""


class CommitFuture:
    """Waits for a commit on behalf of a coroutine."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def committed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def failed(self, partition: "Partition", error: HeadraceError) -> None:
        self.committed()


NOWHERE = -1
# Appends that hear of a commit before the loop turns to others: some two milliseconds of answers. A disk that stood
# still for a while commits hundreds at once.
NOTIFIED_PER_ITERATION_MAX = 64


class PartitionWatchers:
    def __init__(self) -> None:
        self.appends: deque[tuple[int, CommitWatcher]] = deque()  # by the offset they wait for, ascending
        self._reached = NOWHERE  # what is committed, for those who have not been told yet
        self._is_telling = False  # the next turn of the loop tells more of them
        self._syncs: list[tuple[int, asyncio.Future[None]]] = []
        self.awaits_fetch: list[asyncio.Future[None]] = []  # for the next fetch of a follower
        self._starts: list[asyncio.Future[None]] = []  # for a log start offset: this replica's or a follower's
        self.fetches: dict[DelayedFetch, None] = {}  # for the watermark; in the order of their coming
        self.replica_fetches: dict[DelayedFetch, None] = {}  # for the end of the log

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
        """A follower has fetched, or the ISR has changed."""
        waiting, self.awaits_fetch = self.awaits_fetch, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until_follower_fetches(self) -> None:
        """Returns after a follower's next fetch. Fetches that wait here get their response, so that it comes soon."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.awaits_fetch.append(future)
        for fetch in list(self.replica_fetches):
            _call(fetch.give_up)
        try:
            await future
        finally:
            with suppress(ValueError):
                self.awaits_fetch.remove(future)  # after a timeout; else it is gone already

    def tell_log_start(self) -> None:
        """A log start offset or the ISR has changed."""
        if self._starts:
            waiting, self._starts = self._starts, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def until_log_start_moves(self) -> None:
        """Returns after the next change, and when this broker stops leading."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starts.append(future)
        try:
            await future
        finally:
            with suppress(ValueError):
                self._starts.remove(future)  # after a timeout; else it is gone already

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
        """The log was truncated to `end`: records beyond it are never synced, so no waiter waits for them."""
        self._syncs = [(min(wanted, end), future) for wanted, future in self._syncs]
        self.on_flush_advanced(synced)

    async def until_synced(self, offset: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._syncs.append((offset, future))
        await future

    async def until_committed(self, offset: int) -> None:
        """Returns when the watermark is there, or when it cannot get there any more."""
        place = (offset, CommitFuture(asyncio.get_running_loop().create_future()))
        self.appends.append(place)
        try:
            await place[1].future
        except asyncio.CancelledError:
            # Whoever gives up leaves no trace: a commit that never comes would otherwise gather waiters.
            with suppress(ValueError):
                self.appends.remove(place)
            raise

    def forget(self, expired: Container[object]) -> None:
        """Drops waiters that have sent their response: a partition that cannot commit would keep them forever."""
        if any(waiter in expired for _, waiter in self.appends):
            self.appends = deque(one for one in self.appends if one[1] not in expired)

    def dismiss(self, partition: "Partition", error: HeadraceError) -> None:
        """Nobody needs to wait here any longer: not for a commit, not for records."""
        self._reached = NOWHERE  # whoever comes next waits for another leadership's commits
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
    """One waiter that raises must not keep the others, or the append that notifies them, from going on."""
    try:
        notify()
    except Exception:
        log.exception("Notifying a waiter of a partition failed; the other waiters are notified")
