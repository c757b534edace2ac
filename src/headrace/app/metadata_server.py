"""`python -m headrace.app.metadata_server`: the metadata store of a local cluster on a Unix socket.

The store of a cluster on one machine ends the sessions of brokers that it has not heard of in time. If it was kept from
running itself, it has heard of nobody, and their news wait in its sockets: by any other clock it would end all sessions
at once when it wakes up. This one counts only time in which the process lived. A session may last longer by it, never
shorter, and brokers count on theirs for no longer than was agreed.

python -m headrace.app.metadata_server --socket PATH [--file metadata.sqlite] [--ready-fd N]

Without a file the facts live in memory. A line on the descriptor says that brokers can connect; SIGTERM ends it.
"""

import argparse
import asyncio
import logging
import os
import secrets
import signal
import sys

from headrace.metadata.store import Store
from headrace.metadata.unix_socket.server import LocalStoreServer
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError
from headrace.process.runtime import SystemClock

TICK_MS = 100
# What one look may add: ticks of a busy loop come late. A process that is late by more was not running.
STEP_MS_MAX = 300


class RunningTimeClock:
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._counted_at_ms = self._clock.monotonic_ms()
        self._lived_ms = self._counted_at_ms

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def monotonic_ms(self) -> int:
        return self._lived_ms + min(self._clock.monotonic_ms() - self._counted_at_ms, STEP_MS_MAX)

    def count(self) -> None:
        """To be called again and again while the process lives."""
        self._lived_ms = self.monotonic_ms()
        self._counted_at_ms = self._clock.monotonic_ms()

    def count_with(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on, whenever the loop has turned for a while."""
        self.count()
        loop.call_later(TICK_MS / 1000, self.count_with, loop)


log = logging.getLogger(__name__)

LEASE_BITS = 48  # enough that no two runs meet, and room above it to count on


async def _serve(socket_path: str, file: str | None, ready_fd: int | None) -> None:
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    store = await _open(file)
    server = LocalStoreServer(store)
    try:
        await server.start(socket_path)
        if ready_fd is not None:
            os.write(ready_fd, b"ready\n")
            os.close(ready_fd)
        await stop.wait()
    finally:
        await server.close()
        await store.close()


async def _open(file: str | None) -> Store:
    # Brokers outlive this process: a lease that an earlier one gave must not be mistaken for one of ours.
    last_lease = secrets.randbits(LEASE_BITS)
    clock = RunningTimeClock()
    clock.count_with(asyncio.get_running_loop())
    if file is None:
        from headrace.metadata.embedded import MemoryStore

        return MemoryStore(clock, last_lease)
    from headrace.metadata.sqlite.store import SqliteStore

    return await SqliteStore.open(file, clock, last_lease)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.app.metadata_server", description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--file")
    parser.add_argument("--ready-fd", type=int)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_serve(options.socket, options.file, options.ready_fd))
    except (HeadraceError, OSError) as error:
        log.critical("Stopping: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
