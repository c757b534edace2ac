"""Client of a metadata store that the brokers of a host share.

Maps a lost connection to the error of each call, and reconnects with the next call. The guarantees are those of
`metadata/store.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from headrace.metadata.store import (
    Change,
    LeaseId,
    OutcomeUnknown,
    Snapshot,
    StoreClosed,
    Unavailable,
    check_size,
)
from headrace.metadata.unix_socket import protocol
from headrace.metadata.unix_socket.server import check_path, read_message
from headrace.model.errors import ProtocolError

# The server responds in milliseconds; one that takes this long is suspended, or waits for its disk.
ANSWER_SECONDS_MAX = 5.0


class UnixSocketStore:
    """Created by `UnixSocketStore.connect`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    @classmethod
    async def connect(cls, path: str) -> "UnixSocketStore":
        """Connects. Raises Unavailable if no server listens there."""
        check_path(path)
        store = cls(path)
        await store._connected()
        return store

    async def load(self, prefix: str) -> Snapshot:
        return protocol.snapshot_from_json(await self._call("load", prefix))

    async def commit(
        self, expect: Mapping[str, int], writes: Mapping[str, bytes | None], lease: LeaseId | None = None
    ) -> int:
        check_size(expect, writes)
        revision: int = await self._call("commit", [dict(expect), protocol.writes_to_json(writes), lease], changes=True)
        return revision

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[Change, None]:
        try:
            connection = await self._connected()
        except StoreClosed:
            return
        number, answers = connection.ask("watch", [prefix, after_revision])
        try:
            while True:
                message = await answers.get()
                if message is None or message.word == "end":
                    if self._closed:
                        return
                    raise Unavailable(f"the connection to the metadata store at {self._path} broke")
                if message.word == "error":
                    raise protocol.error_from_json(message.content)
                yield protocol.change_from_json(message.content)
        finally:
            connection.forget(number, cancel=True)

    async def grant(self, ttl_ms: int) -> LeaseId:
        return LeaseId(await self._call("grant", ttl_ms))

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._call("keep_alive", lease)

    async def revoke(self, lease: LeaseId) -> None:
        await self._call("revoke", lease)

    async def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    async def _call(self, word: str, content: Any, *, changes: bool = False) -> Any:
        """Sends a call. `changes`: a request without a response may have been executed (OutcomeUnknown)."""
        connection = await self._connected()
        number, answers = connection.ask(word, content)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                message = await answers.get()
        except TimeoutError:
            message = None
        finally:
            connection.forget(number)
        if message is None:
            if self._closed:
                raise StoreClosed("the metadata store is closed")
            lost = f"the metadata store at {self._path} did not respond"
            raise OutcomeUnknown(lost) if changes else Unavailable(lost)
        if message.word == "error":
            raise protocol.error_from_json(message.content)
        return message.content

    async def _connected(self) -> "_Connection":
        if self._closed:
            raise StoreClosed("the metadata store is closed")
        async with self._connecting:
            if self._connection is None or self._connection.broken:
                self._connection = await _Connection.open(self._path)
            return self._connection


Answers = asyncio.Queue[protocol.Message | None]


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.broken = False
        self._writer = writer
        self._last_number = 0
        self._waiting: dict[int, Answers] = {}
        self._reading = asyncio.create_task(self._read(reader))

    @classmethod
    async def open(cls, path: str) -> "_Connection":
        try:
            return cls(*await asyncio.open_unix_connection(path))
        except OSError as error:
            raise Unavailable(f"no metadata server listens at {path} ({error.strerror}); is the cluster up?") from None

    def ask(self, word: str, content: Any) -> tuple[int, Answers]:
        self._last_number += 1
        number, answers = self._last_number, Answers()
        self._waiting[number] = answers
        if self.broken:
            answers.put_nowait(None)
        else:
            self._writer.write(protocol.encode(number, word, content))
        return number, answers

    def forget(self, number: int, *, cancel: bool = False) -> None:
        self._waiting.pop(number, None)
        if cancel and not self.broken:
            self._writer.write(protocol.encode(number, "cancel"))

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait((self._reading,))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while (message := await read_message(reader)) is not None:
                if (answers := self._waiting.get(message.number)) is not None:
                    answers.put_nowait(message)
        except ProtocolError:
            pass  # the peer is no metadata store
        finally:
            self.broken = True
            self._writer.close()
            for answers in self._waiting.values():
                answers.put_nowait(None)
