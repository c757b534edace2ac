"""Brokers of one machine on one embedded store: its process killed, paused, restarted, and spoken to by strangers."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from headrace.metadata.store import Change, Conflict, LeaseExpired, OutcomeUnknown, Snapshot, Unavailable
from headrace.metadata.unix_socket import client as client_module
from headrace.metadata.unix_socket.client import UnixSocketStore
from headrace.metadata.watch import follow
from headrace.model.errors import InvalidConfig
from headrace.testing.local.suspend import resume, suspend

LEASE_MS = 2_000


class Server:
    """`python -m headrace.app.metadata_server` on a file."""

    def __init__(self, directory: str) -> None:
        self.socket = f"{directory}/metadata.sock"
        self._file = f"{directory}/metadata.sqlite"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        read_end, write_end = os.pipe()
        command = [sys.executable, "-P", "-m", "headrace.app.metadata_server", "--socket", self.socket]
        command += ["--file", self._file, "--ready-fd", str(write_end)]
        self._process = await asyncio.create_subprocess_exec(*command, pass_fds=(write_end,))
        os.close(write_end)
        try:
            assert await asyncio.to_thread(os.read, read_end, 6) == b"ready\n"
        finally:
            os.close(read_end)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def end(self, number: int) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        await self._process.wait()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    with tempfile.TemporaryDirectory() as directory:  # tmp_path may be too long for a socket's address
        server = Server(directory)
        await server.start()
        yield server
        await server.end(signal.SIGKILL)


async def test_facts_survive_kill_9_of_the_server_and_leases_do_not(server: Server) -> None:
    store = await UnixSocketStore.connect(server.socket)
    lease = await store.grant(60_000)
    await store.commit({}, {"/topics/t": b"\x00\xff"})
    await store.commit({}, {"/brokers/1": b"here"}, lease)
    await server.end(signal.SIGKILL)
    with pytest.raises(Unavailable):
        await store.load("/")
    await server.start()
    assert {key: entry.value for key, entry in (await store.load("/")).entries.items()} == {"/topics/t": b"\x00\xff"}
    other = await store.grant(60_000)
    with pytest.raises(LeaseExpired):
        await store.keep_alive(lease)
    assert other != lease, "or the holder of the old one would keep the other's alive"
    await store.close()


async def test_whoever_follows_over_a_restart_of_the_server_misses_nothing(server: Server) -> None:
    store, other = await UnixSocketStore.connect(server.socket), await UnixSocketStore.connect(server.socket)
    async with aclosing(follow(store, "/")) as stream, asyncio.timeout(20):
        assert isinstance(await anext(stream), Snapshot)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await server.end(signal.SIGTERM)
        await server.start()
        await other.commit({}, {"/a": b"1"})
        news = await waiting  # a change, or everything if the watch came back after it
        seen = news.writes if isinstance(news, Change) else {key: one.value for key, one in news.entries.items()}
        assert seen == {"/a": b"1"}
    await store.close()
    await other.close()


async def test_a_commit_without_an_answer_is_of_unknown_outcome(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_SECONDS_MAX", 0.2)
    store = await UnixSocketStore.connect(server.socket)
    suspend(server.pid)
    with pytest.raises(OutcomeUnknown):
        await store.commit({"/a": 0}, {"/a": b"1"})
    with pytest.raises(Unavailable):
        await store.load("/")
    resume(server.pid)
    monkeypatch.undo()
    with pytest.raises(Conflict):  # the first one did happen after all, and only one of the two may
        await store.commit({"/a": 0}, {"/a": b"2"})
    assert (await store.load("/")).entries["/a"].value == b"1"
    await store.close()


async def test_a_store_that_slept_itself_ends_nobodys_session_for_it(server: Server) -> None:
    """Whoever held one has said so in time; it could not listen."""
    store = await UnixSocketStore.connect(server.socket)
    lease = await store.grant(LEASE_MS)
    await store.commit({}, {"/brokers/1": b"here"}, lease)
    suspend(server.pid)
    await asyncio.sleep(1.1 * LEASE_MS / 1000)
    resume(server.pid)
    await store.keep_alive(lease)
    assert (await store.load("/")).entries["/brokers/1"].value == b"here"
    await store.close()


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x00\x00\x00\x02[]", b'\x00\x00\x00\x0c[1,"x",null]']
)
async def test_a_stranger_changes_nothing(server: Server, garbage: bytes) -> None:
    store = await UnixSocketStore.connect(server.socket)
    reader, writer = await asyncio.open_unix_connection(server.socket)
    writer.write(garbage)
    writer.write_eof()
    async with asyncio.timeout(10):
        await reader.read()
    writer.close()
    assert (await store.load("/")).entries == {}
    await store.close()


async def test_only_this_user_may_connect(server: Server) -> None:
    assert os.stat(server.socket).st_mode & 0o077 == 0


async def test_nobody_there_and_a_path_too_long_are_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no metadata server listens"):
        await UnixSocketStore.connect("/tmp/headrace-nobody.sock")
    with pytest.raises(InvalidConfig, match="shorter path"):
        await UnixSocketStore.connect(str(tmp_path / ("x" * 120)))
