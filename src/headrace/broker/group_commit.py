"""Group commit: a few threads that sync files, so that one sync serves every batch that arrived meanwhile.

The loop marks partitions dirty. Each has one sync under way at a time; what comes meanwhile shares the next one. Nobody
waits for the sync of another partition, only for a thread. A sync that fails is never repeated: what is on disk is
unknown then, and the partition goes offline.
"""

import asyncio
import logging
import threading
from collections import deque
from queue import SimpleQueue
from time import perf_counter
from typing import Protocol

from headrace.model.errors import StorageError
from headrace.storage.files import Durable
from headrace.storage.log import Log
from headrace.telemetry.broker_metrics import SYNCS
from headrace.telemetry.figures import Histogram

log = logging.getLogger(__name__)

# File systems write what several wait for at once as one commit of their journal; a few are enough for that.
THREADS_MAX = 4


class Syncable(Protocol):
    log: Log

    def synced(self, offset: int) -> None: ...

    def sync_failed(self, error: StorageError) -> None: ...


Work = tuple[Syncable, list[Durable], int]  # what is to be synced, and the offset that is on disk then
Result = tuple[Syncable, int, StorageError | None, float]  # with the seconds that it took


class GroupCommit:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._fresh: dict[Syncable, None] = {}  # dirty since this turn of the loop
        self._syncing: dict[Syncable, bool] = {}  # whether it has become dirty again since its sync began
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._results: deque[Result] = deque()  # that the loop has not heard of yet
        self._end_is_due = False  # the loop is about to look at them
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.durations = Histogram(SYNCS.bounds)

    def request(self, partition: Syncable) -> None:
        """See that what the partition's log holds now gets to disk soon."""
        if partition in self._syncing:
            self._syncing[partition] = True
            return
        if not self._fresh:
            # Not at once: other requests of the same read join this sync.
            self._loop.call_soon(self._begin_fresh)
        self._fresh[partition] = None

    def _begin_fresh(self) -> None:
        fresh, self._fresh = self._fresh, {}
        for partition in fresh:
            self._begin(partition)

    def _begin(self, partition: Syncable) -> None:
        if self._is_closed:
            return  # what is dirty is still the log's own, who syncs it when it is closed
        self._syncing[partition] = False
        self._queue.put((partition, *partition.log.unsynced()))
        if len(self._threads) < min(len(self._syncing), THREADS_MAX):
            thread = threading.Thread(target=self._sync_until_closed, name="group-commit", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _sync_until_closed(self) -> None:
        while (work := self._queue.get()) is not None:
            self._results.append(_sync(*work))
            if self._end_is_due:
                continue
            self._end_is_due = True
            try:
                self._loop.call_soon_threadsafe(self._end)
            except RuntimeError:
                return  # the loop has ended: nobody is left to answer

    def _end(self) -> None:
        self._end_is_due = False  # before looking: whoever comes too late for this look asks for another
        while self._results:
            partition, offset, error, seconds = self._results.popleft()
            is_dirty = self._syncing.pop(partition)
            self.durations.add(seconds)
            if error is not None:
                partition.sync_failed(error)
                continue
            if is_dirty:
                self._begin(partition)
            partition.synced(offset)

    def close(self) -> None:
        """No more syncs; returns when the last one is over and told: a failure must not pass for a clean stop."""
        self._is_closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._end()


def _sync(partition: Syncable, work: list[Durable], offset: int) -> Result:
    began, trouble = perf_counter(), None
    try:
        for item in work:
            item.sync()
    except StorageError as error:
        trouble = error
    except Exception as error:
        # Whatever it is, it must not end the thread: then nothing would ever be acknowledged again.
        log.exception("cannot sync %s", partition.log.directory)
        trouble = StorageError(f"cannot sync {partition.log.directory}: {error}")
    return partition, offset, trouble, perf_counter() - began
