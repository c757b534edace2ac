"""TLS before a broker that has none: clients with the right certificate come through, others do not."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOST = "127.0.0.1"


@contextmanager
def tls_front(port: int, behind: int, folder: Path) -> Iterator[None]:
    """Serves at `port` with the certificates of the folder, and passes on to `behind`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "node.pem", folder / "node.key")
    context.verify_mode = ssl.CERT_REQUIRED
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with asyncio.TaskGroup() as connections:

            async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = connections.create_task(_connect(reader, writer, behind))
                open_ones.add(task)
                task.add_done_callback(open_ones.discard)

            open_ones: set[asyncio.Task[None]] = set()
            server = await asyncio.start_server(pass_on, HOST, port, ssl=context)
            ready.set()
            await stop.wait()
            server.close()
            for task in open_ones:
                task.cancel()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, behind: int) -> None:
    back_reader, back_writer = await asyncio.open_connection(HOST, behind)
    ways = [asyncio.ensure_future(way) for way in (_copy(reader, back_writer), _copy(back_reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _hang_up(writer)
        await _hang_up(back_writer)
        await asyncio.wait(ways)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
