"""Rounds of group commit, done by the kernel itself (`storage/sync_ring.py`): those that are one file of a real disk.

That is nearly all of them. Where names have to be synced as well, as in the first round of a segment, threads do it.
"""

import asyncio
import errno
import logging
import os
from time import perf_counter

from headrace.broker.sync_threads import Ended, Round, SyncThreads
from headrace.model.errors import StorageError
from headrace.storage.files import OsFile, as_sync_error
from headrace.storage.sync_ring import SyncRing

log = logging.getLogger(__name__)


def open_ring() -> SyncRing | None:
    """None where the kernel has no io_uring, or an administrator or a container does not allow it."""
    try:
        return SyncRing()
    except OSError as error:
        log.info("threads sync the logs: %s", error)
        return None


class RingSyncs:
    def __init__(self, loop: asyncio.AbstractEventLoop, ring: SyncRing, threads: SyncThreads, ended: Ended) -> None:
        self._loop = loop
        self._ring = ring
        self._threads = threads
        self._tell_ended = ended
        self._tickets = 0
        self._pushed: list[int] = []
        self._under_way: dict[int, tuple[Round, OsFile, int, float]] = {}  # by ticket: file, descriptor, when it began
        loop.add_reader(ring.fileno(), self._end)

    def takes(self, sync: Round) -> bool:
        # No subclass: files in memory have a sync of their own.
        return len(sync.work) == 1 and type(sync.work[0]) is OsFile and len(self._under_way) < self._ring.capacity

    def push(self, sync: Round) -> None:
        """It begins with the next `submit`, together with others."""
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
                self._threads.begin(sync)  # nothing has been lost, nothing has been done
                continue
            sync.error = _error(file, descriptor, result)
            sync.seconds = perf_counter() - began
            ended.append(sync)
        self._tell_ended(ended)

    def close(self) -> None:
        """Returns when the last round is over and told, or with the threads."""
        self._loop.remove_reader(self._ring.fileno())
        while self._under_way:
            self._ring.wait()
            self._end()
        self._ring.close()


def _error(file: OsFile, descriptor: int, result: int) -> StorageError | None:
    if file.fileno() != descriptor:
        # The kernel may have found another file under this number.
        return StorageError(f"{file.path} was closed before it was synced")
    if result == 0:
        return None
    return as_sync_error(OSError(-result, os.strerror(-result)), file.path)
