"""A broker on a thread of this process, with an event loop of its own, for LocalBroker(in_process=True).

For debuggers and profilers, and where processes cannot be started. It shares the interpreter lock with the test, so a
process is better where speed or isolation matters.
"""

import asyncio
import os
import threading
from concurrent.futures import Future

from headrace.app.node import Node
from headrace.broker.runtime.event_loop import run_with_turn_ends
from headrace.config.settings import Settings

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0


class BrokerThread:
    """A Node on a thread. Serves from the moment it is constructed."""

    def __init__(self, settings: Settings) -> None:
        self.pid = os.getpid()
        self._settings = settings
        self._serving: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._failure: BaseException | None = None
        # A daemon thread: a test run that does not stop its broker still ends.
        self._thread = threading.Thread(target=self._run, name="headrace-broker", daemon=True)
        self._thread.start()
        self._serving.result(START_SECONDS_MAX)

    def _run(self) -> None:
        try:
            run_with_turn_ends(self._serve())
        except BaseException as error:
            self._failure = error
            if not self._serving.done():
                self._serving.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        node = Node(self._settings)
        try:
            await node.start()
            self._serving.set_result(None)
            await self._stopping.wait()
        finally:
            await node.stop()

    def ended_by_itself(self) -> str | None:
        return None if self._thread.is_alive() else repr(self._failure)

    def stop(self) -> None:
        if self._thread.is_alive() and self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            raise RuntimeError(f"the broker did not stop within {STOP_SECONDS_MAX:.0f} s")

    def kill(self) -> None:
        raise RuntimeError("a broker in this process cannot be killed; leave in_process out")
