"""Metadata publisher: delivers metadata events to listeners in commit order, outside of the commit lock.

A listener may take long, for example to create the directories of thousands of partitions. Other changes are
committed and applied to the image during that time, and their events are queued here. Therefore the image may be
ahead of the event that a listener receives.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from headrace.core.image.deltas import MetadataDelta
from headrace.model.errors import HeadraceError

log = logging.getLogger(__name__)

MetadataPublisher = Callable[[MetadataDelta], Awaitable[None]]

# Each queued commit holds the topics that it changed, up to 80 kB for one with 10,000 partitions. Above this limit, no
# commits of other brokers are applied until the listeners have caught up.
PENDING_MAX = 256


class EventDelivery:
    def __init__(self) -> None:
        self._listeners: list[MetadataPublisher] = []
        self._pending: set[asyncio.Task[None]] = set()
        self._last: asyncio.Task[None] | None = None

    def add_listener(self, listener: MetadataPublisher) -> None:
        self._listeners.append(listener)

    def deliver(self, events: Sequence[MetadataDelta]) -> asyncio.Task[None]:
        """Starts to deliver the events of one commit, after those of all earlier ones.

        The task ends when every listener has returned for every event. It raises the first exception of a listener.
        """
        task = asyncio.get_running_loop().create_task(self._run(events, self._last))
        self._last = task
        self._pending.add(task)
        task.add_done_callback(self._done)
        return task

    @property
    def is_behind(self) -> bool:
        return len(self._pending) > PENDING_MAX

    async def settled(self) -> None:
        """Returns when the listeners have returned for all events delivered so far. Never raises."""
        if self._pending:
            await asyncio.wait(tuple(self._pending))

    def check_not_listening(self) -> None:
        """Raises if called from a listener: a change that a listener awaits would wait for the listener to return."""
        if asyncio.current_task() in self._pending:
            raise RuntimeError("A listener of metadata events must not await another change of metadata")

    def _done(self, task: asyncio.Task[None]) -> None:
        self._pending.discard(task)
        if task is self._last:
            self._last = None
        if not task.cancelled():
            task.exception()  # logged already, and raised to the caller if it waits

    async def _run(self, events: Sequence[MetadataDelta], previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait((previous,))
        del previous
        first_error: Exception | None = None
        for event in events:
            for listener in self._listeners:
                try:
                    await listener(event)
                except Exception as error:
                    is_expected = isinstance(error, HeadraceError)
                    log.error("%s could not be followed: %s", type(event).__name__, error, exc_info=not is_expected)
                    first_error = first_error or error
        if first_error is not None:
            raise first_error


async def followed(delivery: "asyncio.Task[None]") -> None:
    """Waits until the listeners have processed the events. Cancelling the caller does not cancel them."""
    await asyncio.wait((delivery,))
    delivery.result()
