"""Files that a broker no longer needs: out of the way at once, removed in the background.

Unlinking a large file takes many milliseconds, and removing a folder of them more: none of it on the loop.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from headrace.broker.partition import Partition
from headrace.model.errors import DiskFull, StorageError
from headrace.model.ids import TopicPartition
from headrace.storage.log_dir import LogDir
from headrace.storage.segment import Segment
from headrace.storage.segment_files import set_aside_segment_files

log = logging.getLogger(__name__)


class Removals:
    def __init__(self, log_dir: LogDir) -> None:
        self._log_dir = log_dir
        self._tasks: set[asyncio.Task[None]] = set()

    async def finish(self) -> None:
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def remove_tree(self, path: str) -> None:
        """Now, at the start, when nobody waits."""
        try:
            self._log_dir.files.remove_tree(path)
        except StorageError as error:
            log.error("could not remove %s: %s; the next start tries again", path, error)

    def let_go(self, partition: Partition, segments: list[Segment], at_once: bool) -> None:
        """A log has moved its start: remember it durably, then remove what lies below."""
        self._log_dir.note(TopicPartition(partition.topic, partition.index), partition.log)
        paths: list[str] = []
        try:
            for segment in segments:  # oldest first: whenever it stops, what is left has no hole
                paths += set_aside_segment_files(self._log_dir.files, segment)
        except StorageError as error:
            log.error("%s: could not remove its oldest segments: %s; the next start tries again", partition, error)
        if at_once:
            self._write_log_starts(paths)
            self.in_background(self._remove, paths)
        else:
            self.in_background(self._write_log_starts_and_remove, paths)

    def _write_log_starts(self, paths: list[str]) -> None:
        try:
            self._log_dir.write_log_starts()
        except DiskFull:
            self._remove(paths)  # what is to be removed is what makes room
            self._log_dir.write_log_starts()

    def _write_log_starts_and_remove(self, paths: list[str]) -> None:
        self._write_log_starts(paths)
        self._remove(paths)

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self._log_dir.files.remove(path)

    def in_background(self, work: Callable[..., None], *arguments: object) -> None:
        """Unlinking a large file takes many milliseconds: not on the loop."""
        task = asyncio.create_task(asyncio.to_thread(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._removal_done)

    def in_background_after(self, seconds: float, work: Callable[..., None], *arguments: object) -> None:
        asyncio.get_running_loop().call_later(seconds, lambda: self.in_background(work, *arguments))

    def _removal_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("could not remove files: %s; the next start tries again", task.exception())
