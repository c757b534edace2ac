"""Serves one store to the brokers of a host, over a Unix socket that only the same user may open.

After a broker has disconnected, its watches end, its commits in flight complete, and its leases last until they
expire.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from headrace.metadata.store import LeaseId, Store
from headrace.metadata.unix_socket import protocol
from headrace.model.errors import HeadraceError, InvalidConfig, ProtocolError

log = logging.getLogger(__name__)

PATH_BYTES_MAX = 107  # limit of a Unix socket's address on Linux
Write = Callable[[bytes], Awaitable[None]]


class LocalStoreServer:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._calls: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "load": self._load,
            "commit": self._commit,
            "grant": store.grant,
            "keep_alive": store.keep_alive,
            "revoke": store.revoke,
        }

    async def start(self, path: str) -> None:
        """Returns when brokers can connect. Replaces the socket of an earlier server."""
        self._server = await asyncio.start_unix_server(self._accept, sock=_bind(path))

    async def close(self) -> None:
        """Closes the connections. The caller closes the store."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            await self._serve(reader, writer)
        except ProtocolError as error:
            log.warning("Malformed message on the metadata socket; closing the connection: %s", error)
        except (asyncio.CancelledError, ConnectionError):
            pass  # the server is closing, or the broker has disconnected
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests: dict[int, asyncio.Task[None]] = {}

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            while (message := await read_message(reader)) is not None:
                if message.word == "cancel":
                    if (watch := requests.get(message.number)) is not None:
                        watch.cancel()
                    continue
                task = asyncio.create_task(self._answer(message, write))
                requests[message.number] = task
                task.add_done_callback(partial(_forget, requests, message.number))
        finally:
            for task in list(requests.values()):
                task.cancel()  # a commit that the store has begun still completes

    async def _answer(self, message: protocol.Message, write: Write) -> None:
        number, word, content = message
        try:
            if word == "watch":
                await self._watch(number, content, write)
            elif (call := self._calls.get(word)) is not None:
                await write(protocol.encode(number, "answer", await call(content)))
            else:
                raise ValueError(f"the metadata store has no call {word!r}")
        except ConnectionError:
            pass
        except (HeadraceError, ValueError, TypeError) as error:
            with suppress(ConnectionError):
                await write(protocol.encode(number, "error", protocol.error_to_json(error)))

    async def _watch(self, number: int, content: Any, write: Write) -> None:
        prefix, after_revision = content
        async with aclosing(self._store.watch(prefix, after_revision)) as changes:
            async for change in changes:
                await write(protocol.encode(number, "change", protocol.change_to_json(change)))
        await write(protocol.encode(number, "end"))

    async def _load(self, prefix: str) -> Any:
        return protocol.snapshot_to_json(await self._store.load(prefix))

    async def _commit(self, content: Any) -> int:
        expect, writes, lease = content
        return await self._store.commit(
            expect, protocol.writes_from_json(writes), None if lease is None else LeaseId(lease)
        )


def _forget(requests: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    requests.pop(number, None)


async def read_message(reader: asyncio.StreamReader) -> protocol.Message | None:
    """Returns the next message; None if the peer has disconnected."""
    try:
        header = await reader.readexactly(protocol.LENGTH.size)
        return protocol.decode(await reader.readexactly(protocol.body_length(header)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _bind(path: str) -> socket.socket:
    check_path(path)
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)  # no other user may connect at any time
    try:
        listener.bind(path)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def check_path(path: str) -> None:
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise InvalidConfig(
            f"{path} is too long for a Unix socket ({PATH_BYTES_MAX} bytes at most); use a shorter path"
        )
