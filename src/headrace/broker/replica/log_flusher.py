"""Group commit: one sync of a partition serves every batch that arrived meanwhile.

The loop marks partitions dirty. Each has one round under way at a time; what comes meanwhile shares the next one.
Nobody waits for the sync of another partition. A sync that fails is never repeated: what is on disk is unknown then,
and the partition goes offline. The kernel itself (`flush_backends.py`) or threads (`flush_backends.py`) do the syncing.
"""

import asyncio
from collections import deque

from headrace.broker.replica.flush_backends import FlushRequest, FlushTarget, IoUringFlushBackend, ThreadFlushBackend
from headrace.broker.runtime.event_loop import iteration_end_scheduler
from headrace.storage.io.io_uring import IoUringFsync
from headrace.telemetry.broker_metrics import SYNCS
from headrace.telemetry.metrics import Histogram


class LogFlusher:
    def __init__(self, loop: asyncio.AbstractEventLoop, ring: IoUringFsync | None = None) -> None:
        """Without a ring, threads do everything. It is closed with the group commit."""
        self._leave_for_turn_end = iteration_end_scheduler(loop)
        self._fresh: dict[FlushTarget, None] = {}  # dirty since this turn of the loop
        self._syncing: dict[FlushTarget, bool] = {}  # whether it has become dirty again since its sync began
        self._ended: deque[FlushRequest] = deque()  # of which the partition has not heard yet
        self._threads = ThreadFlushBackend(loop, self._end)
        self._ring = None if ring is None else IoUringFlushBackend(loop, ring, self._threads, self._end)
        self._is_closed = False
        self.durations = Histogram(SYNCS.bounds)

    def request(self, partition: FlushTarget) -> None:
        """See that what the partition's log holds now gets to disk soon."""
        if partition in self._syncing:
            self._syncing[partition] = True
            return
        if not self._fresh:
            # Not at once: other requests of the same turn join this sync.
            self._leave_for_turn_end(self._begin_fresh)
        self._fresh[partition] = None

    def _begin_fresh(self) -> None:
        fresh, self._fresh = self._fresh, {}
        self._begin(list(fresh))

    def _begin(self, partitions: list[FlushTarget]) -> None:
        if self._is_closed:
            return  # what is dirty is still the log's own, who syncs it when it is closed
        ring = self._ring
        for partition in partitions:
            self._syncing[partition] = False
            sync = FlushRequest(partition, *partition.log.take_unflushed())
            if ring is not None and ring.takes(sync):
                ring.push(sync)
            else:
                self._threads.begin(sync)
        if ring is not None:
            ring.submit()

    def _end(self, ended: list[FlushRequest]) -> None:
        dirty: list[FlushTarget] = []
        for sync in ended:
            self.durations.add(sync.seconds)
            if self._syncing.pop(sync.partition) and sync.error is None:
                dirty.append(sync.partition)
        self._begin(dirty)  # before anybody is told: answers are work, and the disk need not wait for it
        self._ended += ended
        while self._ended:  # also those of an earlier time, if telling one of them went wrong
            self._tell(self._ended.popleft())

    def _tell(self, sync: FlushRequest) -> None:
        if sync.error is None:
            sync.partition.synced(sync.offset)
        else:
            sync.partition.sync_failed(sync.error)

    def close(self) -> None:
        """No more syncs; returns when the last one is over and told: a failure must not pass for a clean stop."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._ring is not None:
            self._ring.close()
        self._threads.close()
