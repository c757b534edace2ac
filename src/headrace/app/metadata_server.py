"""The embedded metadata of a cluster on one machine, as a process of its own.

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

from headrace.app.awake_clock import AwakeClock
from headrace.metadata.local.server import LocalStoreServer
from headrace.metadata.store import Store
from headrace.model.errors import HeadraceError

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
    clock = AwakeClock()
    clock.count_with(asyncio.get_running_loop())
    if file is None:
        from headrace.metadata.memory import MemoryStore

        return MemoryStore(clock, last_lease)
    from headrace.metadata.sqlite import SqliteStore

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
