"""Flush backends: fdatasync by a thread pool or by io_uring.

`ThreadFlushBackend` handles any flush on any system. `IoUringFlushBackend` (`storage/io/io_uring.py`) handles flushes
of a single file on a real disk, which is nearly all of them. A flush that also syncs directory entries, such as the
first flush of a segment, runs on a thread.
"""

import asyncio
import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from typing import Protocol

from headrace.model.errors import ResourceShortage, StorageError
from headrace.storage.io.file_system import Durable, OsFile, as_sync_error
from headrace.storage.io.io_uring import IoUringFsync
from headrace.storage.log import Log

log = logging.getLogger(__name__)

# File systems combine concurrent syncs into one journal commit; a few threads are enough for that.
THREADS_MAX = 4
# Without a free descriptor, an attempt costs one failed system call. This interval resumes soon without loading a core.
RETRY_S = 0.05


class FlushTarget(Protocol):
    log: Log

    def synced(self, offset: int) -> None: ...

    def sync_failed(self, error: StorageError) -> None: ...


@dataclass(slots=True, eq=False)
class FlushRequest:
    """One flush of one partition, and its result."""

    partition: FlushTarget
    work: list[Durable]
    offset: int  # everything below it is on disk when the flush succeeds
    error: StorageError | None = None
    seconds: float = 0.0


Ended = Callable[[list[FlushRequest]], None]


class ThreadFlushBackend:
    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Ended) -> None:
        self._loop = loop
        self._tell_ended = ended
        self._queue: SimpleQueue[FlushRequest | None] = SimpleQueue()
        self._under_way = 0
        self._ended: deque[FlushRequest] = deque()  # flushes that the event loop has not processed yet
        self._end_is_due = False  # `_end` is scheduled on the event loop
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()

    def begin(self, sync: FlushRequest) -> None:
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
                self._queue.put(sync)  # behind the other flushes, which may need no descriptor
                continue
            self._ended.append(sync)
            if self._end_is_due:
                continue
            self._end_is_due = True
            try:
                self._loop.call_soon_threadsafe(self._end)
            except RuntimeError:
                return  # the event loop is closed: no response is pending

    def _end(self) -> None:
        self._end_is_due = False  # cleared before draining: a flush that ends later schedules another call
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        self._under_way -= len(ended)
        self._tell_ended(ended)

    def close(self) -> None:
        """Returns when the last flush has ended and its result has been reported."""
        self._closing.set()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        while not self._queue.empty():
            sync = self._queue.get()
            if sync is not None:  # the threads ended while this flush still lacked a descriptor
                _do(sync, may_retry=False)
                self._ended.append(sync)
        self._end()


def _do(sync: FlushRequest, *, may_retry: bool) -> bool:
    """Runs a flush. Returns False if the rest must be retried: a file could not be opened, and no sync has failed."""
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
        # No exception may end the thread: without it, no record would be acknowledged any more.
        log.exception("cannot sync %s", sync.partition.log.directory)
        sync.error = StorageError(f"cannot sync {sync.partition.log.directory}: {error}")
    sync.seconds += perf_counter() - began
    return True


def open_ring() -> IoUringFsync | None:
    """Returns None if the kernel has no io_uring, or if a sysctl or a container policy forbids it."""
    try:
        return IoUringFsync()
    except OSError as error:
        log.info("threads sync the logs: %s", error)
        return None


class IoUringFlushBackend:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, ring: IoUringFsync, threads: ThreadFlushBackend, ended: Ended
    ) -> None:
        self._loop = loop
        self._ring = ring
        self._threads = threads
        self._tell_ended = ended
        self._tickets = 0
        self._pushed: list[int] = []
        self._under_way: dict[
            int, tuple[FlushRequest, OsFile, int, float]
        ] = {}  # by ticket: flush, file, descriptor, start time
        loop.add_reader(ring.fileno(), self._end)

    def takes(self, sync: FlushRequest) -> bool:
        # Subclasses are excluded: in-memory files implement their own sync.
        return len(sync.work) == 1 and type(sync.work[0]) is OsFile and len(self._under_way) < self._ring.capacity

    def push(self, sync: FlushRequest) -> None:
        """Queues a flush. It starts at the next `submit`, together with the others."""
        [file] = sync.work
        assert isinstance(file, OsFile)
        descriptor = file.fileno()
        self._tickets += 1
        self._under_way[self._tickets] = (sync, file, descriptor, perf_counter())
        self._pushed.append(self._tickets)
        self._ring.push(descriptor, self._tickets)

    def submit(self) -> None:
        if not self._pushed:
            return
        pushed, self._pushed = self._pushed, []
        for ticket in pushed[self._ring.submit() :]:
            self._threads.begin(self._under_way.pop(ticket)[0])

    def _end(self) -> None:
        ended = []
        for ticket, result in self._ring.completions():
            sync, file, descriptor, began = self._under_way.pop(ticket)
            if result == -errno.EINTR:
                self._threads.begin(sync)  # interrupted before it did anything: retrying on a thread is safe
                continue
            sync.error = _error(file, descriptor, result)
            sync.seconds = perf_counter() - began
            ended.append(sync)
        self._tell_ended(ended)

    def close(self) -> None:
        """Returns when the last flush has ended and its result has been reported, by io_uring or by the thread pool."""
        self._loop.remove_reader(self._ring.fileno())
        while self._under_way:
            self._ring.wait()
            self._end()
        self._ring.close()


def _error(file: OsFile, descriptor: int, result: int) -> StorageError | None:
    if file.fileno() != descriptor:
        # The descriptor may belong to another file by now.
        return StorageError(f"{file.path} was closed before it was synced")
    if result == 0:
        return None
    return as_sync_error(OSError(-result, os.strerror(-result)), file.path)
