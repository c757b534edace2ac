"""Network links between the brokers of a LocalCluster that can be partitioned, one way or both, without root.

Other brokers reach a broker through a relay, and the broker reaches the metadata store through another one. A
partitioned relay keeps its data and forwards nothing, like a network that loses packets: no side gets an error. After
`heal` it forwards again.

The caller is identified by the process that owns the other end of the connection, which the kernel lists in /proc.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")
HOST = "127.0.0.1"
CHUNK_BYTES = 256 * 1024
STORE = 0  # the metadata store among the broker ids


class NetworkLinks:
    def __init__(self, pids: Callable[[], Mapping[int, int]]) -> None:
        """Starts the relays' thread. `pids` returns the process ids of running brokers, by broker id."""
        self._pids = pids
        self._cut: dict[tuple[int, int], asyncio.Event] = {}
        self._relays: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    # Called on the test's thread

    def to_broker(self, broker: int, port: int) -> int:
        """Returns a port that relays to this broker, which listens on `port`."""

        async def listen() -> int:
            async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                caller = Caller(writer.get_extra_info("peername")[1], number, self._pids)
                await self._relay(reader, writer, caller, broker, asyncio.open_connection(HOST, port))

            server = await asyncio.start_server(accepted, HOST, 0)
            self._servers.append(server)
            number: int = server.sockets[0].getsockname()[1]
            return number

        return self._run(listen())

    def to_store(self, broker: int, path: str, store_path: str) -> None:
        """Creates a socket at `path` that relays this broker's connections to the metadata store."""

        async def listen() -> None:
            async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._relay(reader, writer, lambda: broker, STORE, asyncio.open_unix_connection(store_path))

            self._servers.append(await asyncio.start_unix_server(accepted, path))

        self._run(listen())

    def cut(self, sender: int, receiver: int) -> None:
        async def close() -> None:
            self._cut.setdefault((sender, receiver), asyncio.Event())

        self._run(close())

    def heal(self) -> None:
        async def open_all() -> None:
            healed, self._cut = self._cut, {}
            for event in healed.values():
                event.set()

        self._run(open_all())

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for task in self._relays:
                task.cancel()
            await asyncio.gather(*self._relays, return_exceptions=True)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # On the event loop

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        caller: "Callable[[], int]",
        called: int,
        connecting: Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        try:
            far_reader, far_writer = await connecting
            there = asyncio.create_task(self._pump(reader, far_writer, lambda: (caller(), called)))
            back = asyncio.create_task(self._pump(far_reader, writer, lambda: (called, caller())))
            try:
                await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            finally:
                there.cancel()
                back.cancel()
                far_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # the broker is down, like a refused connection; or the links are closed
        finally:
            self._relays.discard(task)
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Callable[[], tuple[int, int]]
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                await self._passable(way)
                writer.write(data)
                await writer.drain()
        await self._passable(way)  # the end of a stream is delayed by a partition, too

    async def _passable(self, way: Callable[[], tuple[int, int]]) -> None:
        while self._cut and (cut := self._cut.get(way())) is not None:
            await cut.wait()


class Caller:
    """Returns the broker whose process owns the near end of a connection; -1 for other processes and while unknown."""

    def __init__(self, port: int, to_port: int, pids: Callable[[], Mapping[int, int]]) -> None:
        self._port = port
        self._to_port = to_port
        self._pids = pids
        self._broker = -1

    def __call__(self) -> int:
        if self._broker < 0:  # a starting broker has no known process yet
            inode = _inode_of(self._port, self._to_port)
            self._broker = next((one for one, pid in self._pids().items() if inode and inode in _sockets_of(pid)), -1)
        return self._broker


def _inode_of(port: int, to_port: int) -> str:
    """Returns the socket inode of a connection.

    Both ends are compared: connections to different targets may share a local port.
    """
    wanted = [_as_listed(port), _as_listed(to_port)]
    with open("/proc/net/tcp") as table:
        for line in table:
            fields = line.split()
            if fields[1:3] == wanted:
                return fields[9]
    return ""


def _as_listed(port: int) -> str:
    return f"0100007F:{port:04X}"  # 127.0.0.1 in the kernel's format


def _sockets_of(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    found.add(target[len("socket:[") : -1])
    return found
