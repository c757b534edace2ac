"""Cluster facts in one SQLite file, for a node of its own: a commit survives kill -9 and power loss.

Decides how the file and the ledger stay one. The ledger in memory answers every question; the file is written
before the ledger changes and read only when it is opened. Never blocks the event loop: all SQLite work, its
import included, happens on one thread that belongs to the store.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.metadata.embedded import EmbeddedStore
from headrace.metadata.key_value_state import KeyValueState
from headrace.metadata.sqlite.file import SqliteFile
from headrace.metadata.store import Change
from headrace.model.clock import Clock

Result = TypeVar("Result")


class SqliteStore(EmbeddedStore):
    """Made by `SqliteStore.open`. Its leases end at the latest when the file is opened again.

    Only the process that has the file open can hold a lease in it, so at an opening no holder is left.
    """

    def __init__(self, clock: Clock, ledger: KeyValueState, facts: SqliteFile, thread: ThreadPoolExecutor) -> None:
        super().__init__(clock, ledger)
        self._facts = facts
        self._thread = thread

    @classmethod
    async def open(cls, path: str, clock: Clock, last_lease: int = 0) -> "SqliteStore":
        """Open the file, making it if it is not there; its directory is."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-metadata")
        try:
            facts = await _on(thread, lambda: SqliteFile(path))
            entries, revision = await _on(thread, facts.read)
        except BaseException:
            thread.shutdown()
            raise
        return cls(clock, KeyValueState(entries, revision, last_lease), facts, thread)

    async def _persist(self, change: Change, leased: bool) -> None:
        await _on(self._thread, lambda: self._facts.write(change, leased))

    async def close(self) -> None:
        if self._closed:
            return
        await super().close()
        try:
            await _on(self._thread, self._facts.close)
        finally:
            self._thread.shutdown()


async def _on(thread: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(thread, work)
