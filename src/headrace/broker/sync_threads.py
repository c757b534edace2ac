"""Rounds of group commit, done by a few threads: any work, on any system."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from typing import Protocol

from headrace.model.errors import ResourceShortage, StorageError
from headrace.storage.files import Durable
from headrace.storage.log import Log

log = logging.getLogger(__name__)

# File systems write what several wait for at once as one commit of their journal; a few are enough for that.
THREADS_MAX = 4
# Without a descriptor, an attempt costs one failed system call: often enough to go on soon, too seldom to load a core.
RETRY_S = 0.05


class Syncable(Protocol):
    log: Log

    def synced(self, offset: int) -> None: ...

    def sync_failed(self, error: StorageError) -> None: ...


@dataclass(slots=True, eq=False)
class Round:
    """One sync of one partition, and what came of it."""

    partition: Syncable
    work: list[Durable]
    offset: int  # below it everything is on disk then
    error: StorageError | None = None
    seconds: float = 0.0


Ended = Callable[[list[Round]], None]


class SyncThreads:
    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Ended) -> None:
        self._loop = loop
        self._tell_ended = ended
        self._queue: SimpleQueue[Round | None] = SimpleQueue()
        self._under_way = 0
        self._ended: deque[Round] = deque()  # that the loop has not heard of yet
        self._end_is_due = False  # the loop is about to look at them
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()

    def begin(self, sync: Round) -> None:
        self._queue.put(sync)
        self._under_way += 1
        if len(self._threads) < min(self._under_way, THREADS_MAX):
            thread = threading.Thread(target=self._sync_until_closed, name="group-commit", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _sync_until_closed(self) -> None:
        while (sync := self._queue.get()) is not None:
            if not _do(sync, may_retry=True):
                self._closing.wait(RETRY_S)
                self._queue.put(sync)  # behind the others: they may need no descriptor
                continue
            self._ended.append(sync)
            if self._end_is_due:
                continue
            self._end_is_due = True
            try:
                self._loop.call_soon_threadsafe(self._end)
            except RuntimeError:
                return  # the loop has ended: nobody is left to answer

    def _end(self) -> None:
        self._end_is_due = False  # before looking: whoever comes too late for this look asks for another
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        self._under_way -= len(ended)
        self._tell_ended(ended)

    def close(self) -> None:
        """Returns when the last round is over and told."""
        self._closing.set()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        while not self._queue.empty():
            sync = self._queue.get()
            if sync is not None:  # it still lacked a descriptor when the threads ended
                _do(sync, may_retry=False)
                self._ended.append(sync)
        self._end()


def _do(sync: Round, *, may_retry: bool) -> bool:
    """False if the rest of the round has to be tried again: a file could not be opened, so no sync has failed."""
    began = perf_counter()
    try:
        while sync.work:
            sync.work[0].sync()
            del sync.work[0]
    except ResourceShortage as error:
        if may_retry:
            return False
        sync.error = error
    except StorageError as error:
        sync.error = error
    except Exception as error:
        # Whatever it is, it must not end the thread: then nothing would ever be acknowledged again.
        log.exception("cannot sync %s", sync.partition.log.directory)
        sync.error = StorageError(f"cannot sync {sync.partition.log.directory}: {error}")
    sync.seconds += perf_counter() - began
    return True
