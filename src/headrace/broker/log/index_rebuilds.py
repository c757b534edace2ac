"""Rebuilds the indexes of large segments in a thread, one at a time."""

import asyncio
import logging
from functools import partial

from headrace.storage.log import Log
from headrace.storage.segment.index_rebuild import IndexRebuild, IndexRebuilding
from headrace.storage.segment.log_segment import LogSegment

log = logging.getLogger(__name__)


class IndexRebuilds:
    def __init__(self) -> None:
        self._tasks: dict[LogSegment, asyncio.Task[None]] = {}
        # Each rebuild reads a whole segment. Several at once would occupy the disk and the threads of the default
        # executor.
        self._one_at_a_time = asyncio.Lock()
        self._is_stopped = False

    def serve(self, log_: Log) -> None:
        log_.rebuild_with(_RebuilderOf(self, log_))

    def request(self, log_: Log, segment: LogSegment) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # on a thread, where the caller may rebuild the index itself
        if self._is_stopped:
            return
        task = self._tasks.get(segment)
        if task is None:
            log.warning("%s: an index does not fit; rebuilding it", segment.path)
            task = loop.create_task(self._rebuild(log_, segment), name="rebuild an index")
            self._tasks[segment] = task
            task.add_done_callback(partial(self._ended, segment))

        async def rebuilt(task: "asyncio.Task[None]" = task) -> None:
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

        raise IndexRebuilding(f"{segment.path}: its indexes are being rebuilt", rebuilt)

    async def _rebuild(self, log_: Log, segment: LogSegment) -> None:
        async with self._one_at_a_time:
            while segment in log_.segments:
                rebuild = IndexRebuild(segment)
                await asyncio.to_thread(rebuild.read)
                if segment in log_.segments and rebuild.fits():
                    rebuild.apply()
                    return

    def _ended(self, segment: LogSegment, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(segment, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            log.warning("%s: its indexes are rebuilt", segment.path)
        else:
            log.error("%s: its indexes could not be rebuilt, or not written: %s", segment.path, error)

    async def stop(self) -> None:
        """Cancels the rebuilds in progress. Call before logs are closed; afterwards, callers rebuild indexes."""
        self._is_stopped = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _RebuilderOf:
    def __init__(self, rebuilds: IndexRebuilds, log_: Log) -> None:
        self._rebuilds = rebuilds
        self._log = log_

    def request(self, segment: LogSegment) -> None:
        self._rebuilds.request(self._log, segment)
