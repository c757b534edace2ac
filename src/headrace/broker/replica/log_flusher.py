"""Group commit: one fdatasync of a partition serves every batch that was appended since the last one.

The event loop marks partitions dirty. A partition has at most one flush in flight; batches appended during it share
the next one. Partitions are flushed independently. A failed flush is never retried: the state on disk is unknown
then, and the partition goes offline. The backends, io_uring and threads, are in `flush_backends.py`.
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
        """Without a ring, threads run every flush. `close` closes the ring."""
        self._leave_for_turn_end = iteration_end_scheduler(loop)
        self._fresh: dict[FlushTarget, None] = {}  # marked dirty in this event-loop iteration
        self._syncing: dict[FlushTarget, bool] = {}  # whether the partition became dirty again since its flush began
        self._ended: deque[FlushRequest] = deque()  # results that are not reported to their partitions yet
        self._threads = ThreadFlushBackend(loop, self._end)
        self._ring = None if ring is None else IoUringFlushBackend(loop, ring, self._threads, self._end)
        self._is_closed = False
        self.durations = Histogram(SYNCS.bounds)

    def request(self, partition: FlushTarget) -> None:
        """Schedules a flush of everything that the partition's log holds now."""
        if partition in self._syncing:
            self._syncing[partition] = True
            return
        if not self._fresh:
            # Deferred to the end of the iteration, so that its other requests share this flush.
            self._leave_for_turn_end(self._begin_fresh)
        self._fresh[partition] = None

    def _begin_fresh(self) -> None:
        fresh, self._fresh = self._fresh, {}
        self._begin(list(fresh))

    def _begin(self, partitions: list[FlushTarget]) -> None:
        if self._is_closed:
            return  # unflushed records stay with the log, which syncs them when it is closed
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
        self._begin(dirty)  # before the results are reported: responses take CPU time, and the disk need not idle
        self._ended += ended
        while self._ended:  # including earlier results, if reporting one of them raised
            self._tell(self._ended.popleft())

    def _tell(self, sync: FlushRequest) -> None:
        if sync.error is None:
            sync.partition.synced(sync.offset)
        else:
            sync.partition.sync_failed(sync.error)

    def close(self) -> None:
        """Starts no more flushes. Returns when all results are reported: a failed one prevents a clean shutdown."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._ring is not None:
            self._ring.close()
        self._threads.close()
