"""Metadata store in one SQLite file, for a single node: a commit survives a process crash and a power loss.

The state in memory serves every read. A commit is written to the file before the state changes; the file is read only
when it is opened. Never blocks the event loop: all SQLite work, including its import, runs on one thread of the
store.
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
    """Created by `SqliteStore.open`. Its leases end at the latest when the file is opened again.

    Only the process that has the file open can hold a lease in it, so that no holder is left when the file is opened.
    """

    def __init__(self, clock: Clock, ledger: KeyValueState, facts: SqliteFile, thread: ThreadPoolExecutor) -> None:
        super().__init__(clock, ledger)
        self._facts = facts
        self._thread = thread

    @classmethod
    async def open(cls, path: str, clock: Clock, last_lease: int = 0) -> "SqliteStore":
        """Opens the file; creates it, but not its directory, if it does not exist."""
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
