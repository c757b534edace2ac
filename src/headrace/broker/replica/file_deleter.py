"""Deletes files and directories of logs in the background.

They are renamed at once, so that their names are free. Unlinking a large file takes many milliseconds and removing a
directory takes longer, so no removal runs on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress

from headrace.broker.replica.partition import Partition
from headrace.model.errors import DiskFull, StorageError
from headrace.model.ids import TopicPartition
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.io.file_system import FileSystem
from headrace.storage.segment.log_segment import LogSegment
from headrace.storage.segment.segment_replacement import set_aside_segment_files

log = logging.getLogger(__name__)

LOG_WORK, REMOVAL = "log work", "removal"  # task names


class FileDeleter:
    def __init__(self, log_dir: LogDirectory) -> None:
        self._log_dir = log_dir
        self._tasks: set[asyncio.Task[None]] = set()
        self._let_go: list[str] = []  # files below log start offsets that are not durable yet
        # Requests of many clients write the same file. Without this lock, each would occupy a thread of the default
        # executor while it waits.
        self._settling = asyncio.Lock()
        self._moved = self._settled = 0  # log start offsets moved with `at_once`; how many of them are durable
        # A deleted topic can have thousands of directories. In the default executor, every flush and metadata change
        # would wait behind their removal. One thread also bounds the load on the disk; it starts with the first
        # removal.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-removals")
        self._is_stopped = False
        self._left_over: list[str] = []  # directories that the previous process did not finish removing

    async def finish(self) -> None:
        """Returns when all background tasks are done."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Cancels the removals that have not started. Returns when the other background work of logs is done.

        The names of files to be removed are recognized by the next start, so a stop does not wait for their removal.
        """
        self._is_stopped = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        work = [task for task in self._tasks if task.get_name() != REMOVAL]
        if work:
            await asyncio.gather(*work, return_exceptions=True)

    async def close(self) -> None:
        """Call after `stop`. Waits for the removal in progress, because the next process may use the directory."""
        if self._tasks:
            await asyncio.to_thread(self._thread.shutdown)
            await self.finish()

    def leave_over(self, paths: Iterable[str]) -> None:
        """Adds directories to be removed once the broker serves requests, so that the start does not wait."""
        self._left_over += paths

    def remove_left_over(self) -> None:
        left_over, self._left_over = self._left_over, []
        for path in left_over:
            self.remove_in_background(self.remove_tree, path)

    def remove_tree(self, path: str) -> None:
        try:
            self._log_dir.files.remove_tree(path)
        except StorageError as error:
            log.error("could not remove %s: %s; the next start tries again", path, error)

    def let_go(self, partition: Partition, segments: list[LogSegment], at_once: bool) -> None:
        """Makes a log start offset that has moved forward durable, then removes the segments below it."""
        self._log_dir.note(TopicPartition(partition.topic, partition.index), partition.log)
        paths: list[str] = []
        try:
            for segment in segments:  # oldest first: wherever it stops, the remaining segments are contiguous
                paths += set_aside_segment_files(self._log_dir.files, segment)
        except StorageError as error:
            log.error("%s: could not remove its oldest segments: %s; the next start tries again", partition, error)
        if at_once:
            self._let_go += paths
            self._moved += 1
        else:
            # This write must not wait behind removals: after a crash, the replica would start with records that were
            # deleted. The files have been renamed already, so their removal may precede or follow it.
            self.in_background(self.write_log_starts, paths)
            self.remove_in_background(self.remove, paths)

    def let_go_truncated(self, files: FileSystem, segment: LogSegment) -> None:
        """Renames the files of a segment above the new log end, to free its name. Unlinks them in the background."""
        self.remove_in_background(self.remove, set_aside_segment_files(files, segment))

    async def settle_log_starts(self) -> None:
        """Returns when log start offsets that were moved with `at_once` are durable.

        One write serves all partitions of a request, and all requests that arrived since the last write began.
        """
        wanted = self._moved
        async with self._settling:
            if self._settled >= wanted:
                return
            begun, paths = self._moved, self.take_let_go()
            await asyncio.to_thread(self.write_log_starts, paths)
            self._settled = begun
            self.remove_in_background(self.remove, paths)

    def take_let_go(self) -> list[str]:
        """Returns and clears the files of logs that were moved with `at_once`, to be removed after the write."""
        paths, self._let_go = self._let_go, []
        return paths

    def write_log_starts(self, paths: list[str]) -> None:
        try:
            self._log_dir.write_log_starts()
        except DiskFull:
            self.remove(paths)  # removing these files frees disk space
            self._log_dir.write_log_starts_on_full_disk()

    def remove(self, paths: list[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self._log_dir.files.remove(path)

    def in_background(self, work: Callable[..., None], *arguments: object) -> None:
        """Runs work of a log that waits for the disk and must not wait for removals."""
        self._start(LOG_WORK, None, work, *arguments)

    def remove_in_background(self, work: Callable[..., None], *arguments: object) -> None:
        """Runs a removal in the background. Removals run one at a time, in the order of the calls."""
        if not self._is_stopped:
            self._start(REMOVAL, self._thread, work, *arguments)

    def remove_in_background_after(self, seconds: float, work: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().call_later(seconds, lambda: self.remove_in_background(work, *arguments))

    def _start(self, name: str, executor: Executor | None, work: Callable[..., None], *arguments: object) -> None:
        task = asyncio.create_task(_run(executor, work, *arguments), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._removal_done)

    def _removal_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("could not remove files: %s; the next start tries again", task.exception())


async def _run(executor: Executor | None, work: Callable[..., None], *arguments: object) -> None:
    await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
