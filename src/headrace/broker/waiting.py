"""Who waits for news of a partition: for a commit, for the disk, for records. Told in order, each once."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.partition import Partition


class AppendWaiter(Protocol):
    """A Produce with acks=all; told once for each of its partitions."""

    def committed(self) -> None: ...

    def failed(self, partition: "Partition", error: HeadraceError) -> None: ...


class FetchWaiter(Protocol):
    """A Fetch that has not got enough yet."""

    def wake(self) -> None: ...


class Settled:
    """Waits for a commit on behalf of a coroutine."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def committed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def failed(self, partition: "Partition", error: HeadraceError) -> None:
        self.committed()


class Waiters:
    def __init__(self) -> None:
        self.appends: deque[tuple[int, AppendWaiter]] = deque()  # by the offset they wait for, ascending
        self._syncs: list[tuple[int, asyncio.Future[None]]] = []
        self.fetches: dict[FetchWaiter, None] = {}  # for the watermark; in the order of their coming
        self.replica_fetches: dict[FetchWaiter, None] = {}  # for the end of the log

    def tell_committed(self, reached: int) -> None:
        appends = self.appends
        while appends and appends[0][0] <= reached:
            appends.popleft()[1].committed()
        for fetch in list(self.fetches):
            fetch.wake()

    def tell_appended(self) -> None:
        if self.replica_fetches:
            for fetch in list(self.replica_fetches):
                fetch.wake()

    def tell_synced(self, offset: int) -> None:
        if not self._syncs:
            return
        waiting, self._syncs = self._syncs, []
        for wanted, future in waiting:
            if wanted > offset:
                self._syncs.append((wanted, future))
            elif not future.done():
                future.set_result(None)

    async def until_synced(self, offset: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._syncs.append((offset, future))
        await future

    async def until_committed(self, offset: int) -> None:
        """Returns when the watermark is there, or when it cannot get there any more."""
        place = (offset, Settled(asyncio.get_running_loop().create_future()))
        self.appends.append(place)
        try:
            await place[1].future
        except asyncio.CancelledError:
            # Whoever gives up leaves no trace: a commit that never comes would otherwise gather waiters.
            with suppress(ValueError):
                self.appends.remove(place)
            raise

    def dismiss(self, partition: "Partition", error: HeadraceError) -> None:
        """Nobody needs to wait here any longer: not for a commit, not for records."""
        appends, self.appends = self.appends, deque()
        for _, waiter in appends:
            waiter.failed(partition, error)
        waiting, self._syncs = self._syncs, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
        for fetch in [*self.fetches, *self.replica_fetches]:
            fetch.wake()
