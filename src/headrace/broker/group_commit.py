"""Group commit: one thread that syncs files, so that one sync serves every batch that arrived meanwhile.

The loop marks partitions dirty; the thread takes all of them at once. While it waits for the disk, more become dirty
and share the next round. A sync that fails is never repeated: what is on disk is unknown then, and the partition
goes offline.
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


class Syncable(Protocol):
    log: Log

    def synced(self, offset: int) -> None: ...

    def sync_failed(self, error: StorageError) -> None: ...


Work = list[tuple[Syncable, list[Durable], int]]
Results = list[tuple[Syncable, int, StorageError | None]]


class GroupCommit:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._dirty: dict[Syncable, None] = {}
        self._round_is_due = False  # a round is running or about to start
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._results: deque[Results] = deque()  # of rounds that the loop has not heard of yet
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.durations = Histogram(SYNCS.bounds)  # of the rounds, written by the thread
        self.logs_synced = 0

    def request(self, partition: Syncable) -> None:
        """See that what the partition's log holds now gets to disk soon."""
        self._dirty[partition] = None
        if not self._round_is_due:
            self._round_is_due = True
            # Not at once: other requests of the same read join this round.
            self._loop.call_soon(self._begin_round)

    def _begin_round(self) -> None:
        if self._is_closed:
            return  # what is dirty is still the log's own, who syncs it when it is closed
        if self._thread is None:
            self._thread = threading.Thread(target=self._sync_until_closed, name="group-commit", daemon=True)
            self._thread.start()
        work = [(partition, *partition.log.unsynced()) for partition in self._dirty]
        self._dirty = {}
        self._queue.put(work)

    def _sync_until_closed(self) -> None:
        while (work := self._queue.get()) is not None:
            began = perf_counter()
            results = [_sync(*item) for item in work]
            self.durations.add(perf_counter() - began)
            self.logs_synced += len(work)
            self._results.append(results)
            try:
                self._loop.call_soon_threadsafe(self._end_rounds)
            except RuntimeError:
                return  # the loop has ended: nobody is left to answer

    def _end_rounds(self) -> None:
        while self._results:
            results = self._results.popleft()
            self._round_is_due = bool(self._dirty)
            if self._dirty:
                self._begin_round()
            for partition, offset, error in results:
                if error is None:
                    partition.synced(offset)
                else:
                    partition.sync_failed(error)

    def close(self) -> None:
        """No more rounds; returns when the last one is over and told: a failure must not pass for a clean stop."""
        self._is_closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._end_rounds()


def _sync(partition: Syncable, work: list[Durable], offset: int) -> tuple[Syncable, int, StorageError | None]:
    try:
        for item in work:
            item.sync()
    except StorageError as error:
        return partition, offset, error
    except Exception as error:
        # Whatever it is, it must not end the thread: then nothing would ever be acknowledged again.
        log.exception("cannot sync %s", partition.log.directory)
        return partition, offset, StorageError(f"cannot sync {partition.log.directory}: {error}")
    return partition, offset, None
