"""`python -m headrace.app.metadata_server`: the metadata store of a local cluster on a Unix socket.

    python -m headrace.app.metadata_server --socket PATH [--file metadata.sqlite] [--ready-fd N]

Without a file the metadata is kept in memory. A line on the descriptor signals that brokers can connect; SIGTERM ends
the process.

Session timeouts use a clock that counts only time in which this process ran. After the process was suspended, the
brokers' keepalives are still unread in its sockets, and a system clock would expire all sessions at once. With this
clock a session may last longer than agreed, never shorter, and brokers rely on theirs only for the agreed time.
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
# Maximum time that one reading adds: ticks of a busy loop are late. A process that is later than this was not running.
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
        """Adds the time since the last call; must be called periodically."""
        self._lived_ms = self.monotonic_ms()
        self._counted_at_ms = self._clock.monotonic_ms()

    def count_with(self, loop: asyncio.AbstractEventLoop) -> None:
        """Calls `count` every TICK_MS on the event loop from now on."""
        self.count()
        loop.call_later(TICK_MS / 1000, self.count_with, loop)


log = logging.getLogger(__name__)

LEASE_BITS = 48  # enough for runs to differ, with headroom for counting up


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
    # Brokers outlive this process: lease ids of an earlier process must not collide with this one's.
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
