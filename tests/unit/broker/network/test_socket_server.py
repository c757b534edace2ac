"""The listening side: who gets in, how many, and who is shown out."""

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from struct import pack

import pytest

from headrace.broker.network import socket_server as server_module
from headrace.broker.network.socket_server import (
    DESCRIPTORS_KEPT,
    HALF_FRAME_MS_MAX,
    SHORTAGE_LOG_MS,
    Server,
    descriptors_for_connections,
)
from headrace.config.settings import Listener, Settings
from headrace.testing.simulation.clock import SimClock
from tests.unit.broker.connection_kit import KIB, echo, frame, until

IDLE_MS = 10_000
Start = Callable[..., Server]
opened: list["Client"] = []


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
async def start(clock: SimClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    monkeypatch.setattr(server_module, "HOUSEKEEPING_S", 0.001)
    running: list[Server] = []

    def new(*listeners: str, **configs: object) -> Server:
        named = {"connections.max.idle.ms": str(IDLE_MS)}
        named |= {name.replace("_", "."): str(value) for name, value in configs.items()}
        parsed = tuple(Listener.parse(one) for one in listeners or ("PLAINTEXT://127.0.0.1:0",))
        server = Server(Settings(listeners=parsed, broker_configs=named), echo, clock)
        server.bind()
        server.serve()
        running.append(server)
        return server

    yield new
    while opened:
        await opened.pop().close()
    for server in running:
        server.close()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def of(
        cls, server: Server, listener: str = "PLAINTEXT", host: str = "127.0.0.1", own_host: str | None = None
    ) -> "Client":
        own = None if own_host is None else (own_host, 0)
        client = cls(*await asyncio.open_connection(host, server.bound[listener].port, local_addr=own))
        opened.append(client)
        return client

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def ask(self, body: bytes) -> bytes:
        await self.send(frame(body))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return await self._reader.readexactly(size)

    async def is_shut_out(self) -> bool:
        try:
            return await asyncio.wait_for(self._reader.read(1), 5) == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


# Listening


async def test_a_port_of_zero_becomes_a_real_one_and_is_served(start: Start) -> None:
    server = start()
    assert server.bound["PLAINTEXT"].port > 0
    client = await Client.of(server)
    assert await client.ask(b"hello") == b"hello"


async def test_several_listeners_are_served_and_each_knows_its_name(start: Start) -> None:
    server = start("PLAINTEXT://127.0.0.1:0", "INTERNAL://127.0.0.1:0")
    clients = [await Client.of(server, name) for name in ("PLAINTEXT", "INTERNAL")]
    for client in clients:
        assert await client.ask(b"x") == b"x"
    assert {connection.listener for connection in server.connections} == {"PLAINTEXT", "INTERNAL"}


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 on this machine")
async def test_localhost_is_served_on_both_families_with_one_port(start: Start) -> None:
    server = start("PLAINTEXT://localhost:0")
    families = {sock.family for sock, _ in server._sockets}
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        if family in families:
            client = await Client.of(server, host=host)
            assert await client.ask(b"x") == b"x"


async def test_a_taken_port_is_named_in_the_error(start: Start, clock: SimClock) -> None:
    port = start().bound["PLAINTEXT"].port
    other = Server(Settings(listeners=(Listener("PLAINTEXT", "127.0.0.1", port),)), echo, clock)
    with pytest.raises(OSError, match=f"127.0.0.1 port {port}.*another broker") as refused:
        other.bind()
    assert refused.value.errno == errno.EADDRINUSE


async def test_clients_that_come_before_we_serve_are_served(clock: SimClock) -> None:
    server = Server(Settings(listeners=(Listener("PLAINTEXT", "127.0.0.1", 0),)), echo, clock)
    server.bind()
    client = await Client.of(server)
    await client.send(frame(b"early"))
    server.serve()
    assert await client.ask(b"x") == b"early"
    await client.close()
    server.close()


# Limits


async def test_an_address_has_a_limit_of_connections_and_gets_its_places_back(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(max_connections_per_ip=3)
    clients = [await Client.of(server) for _ in range(3)]
    for client in clients:
        assert await client.ask(b"x") == b"x"
    assert await (await Client.of(server)).is_shut_out()
    assert "refusing a connection from 127.0.0.1" in caplog.text
    await clients.pop().close()
    await until(lambda: len(server.connections) == 2)
    again = await Client.of(server)
    assert await again.ask(b"x") == b"x"


async def test_another_address_is_not_concerned(start: Start) -> None:
    server = start("PLAINTEXT://127.0.0.1:0", max_connections_per_ip=1)
    first = await Client.of(server)
    assert await first.ask(b"x") == b"x"
    assert await (await Client.of(server)).is_shut_out()
    other = await Client.of(server, own_host="127.0.0.2")
    assert await other.ask(b"x") == b"x"


async def test_all_clients_together_have_a_limit(start: Start) -> None:
    server = start(max_connections=2)
    clients = [await Client.of(server) for _ in range(2)]
    for client in clients:
        assert await client.ask(b"x") == b"x"
    assert await (await Client.of(server)).is_shut_out()
    assert len(server.connections) == 2


@pytest.mark.parametrize("limit_of", ["max_connections", "max_connections_per_ip"])
async def test_broker_is_accepted_although_clients_are_at_their_limit(start: Start, limit_of: str) -> None:
    server = start(**{limit_of: 2})
    server.peer_addresses = {2: "127.0.0.2", 3: "127.0.0.1"}
    clients = [await Client.of(server) for _ in range(2)]
    brokers = [await Client.of(server, own_host=host) for host in ("127.0.0.2", "127.0.0.1") for _ in range(3)]
    for client in clients + brokers:
        assert await client.ask(b"x") == b"x"
    for client in brokers:
        await client.close()
    await until(lambda: len(server.connections) == 2)
    assert not server._of_peers
    assert not server._peers_by_address


async def test_connections_from_the_address_of_a_broker_have_a_limit(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "PEER_CONNECTIONS_MAX", 3)
    server = start(max_connections=2)
    server.peer_addresses = {2: "127.0.0.2"}
    for _ in range(5):
        client = await Client.of(server, own_host="127.0.0.2")
        assert await client.ask(b"x") == b"x"
    assert await (await Client.of(server, own_host="127.0.0.2")).is_shut_out()


async def test_clients_limit_does_not_concern_the_listener_for_brokers(start: Start) -> None:
    listeners = ("PLAINTEXT://127.0.0.1:0", "INTERNAL://127.0.0.1:0")
    server = start(*listeners, max_connections=1, inter_broker_listener_name="INTERNAL")
    server.peer_addresses = {2: "127.0.0.1"}
    brokers = [await Client.of(server, "INTERNAL") for _ in range(3)]
    client = await Client.of(server)
    for one in (*brokers, client):
        assert await one.ask(b"x") == b"x"
    assert await (await Client.of(server)).is_shut_out(), "clients use their own listener from there"


async def test_first_of_several_listeners_keeps_the_limit(start: Start) -> None:
    """Brokers use it unless another one is named, and so do clients."""
    server = start("PLAINTEXT://127.0.0.1:0", "OTHER://127.0.0.1:0", max_connections=1)
    assert await (await Client.of(server)).ask(b"x") == b"x"
    assert await (await Client.of(server)).is_shut_out()


async def test_running_out_of_descriptors_is_waited_out(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start()
    sock, listener = server._sockets[0]

    class OutOfDescriptors:
        def accept(self) -> object:
            raise OSError(errno.EMFILE, "Too many open files")

        def fileno(self) -> int:
            return sock.fileno()

    server._accept(OutOfDescriptors(), listener)  # type: ignore[arg-type]
    assert "Too many open files" in caplog.text
    client = await Client.of(server)
    server._accept_again(sock, listener)
    assert await client.ask(b"x") == b"x"


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft limit of descriptors that the server finds; may be changed."""
    soft = [resource.RLIM_INFINITY]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft[0], soft[0]))
    return soft


async def test_connections_leave_descriptors_to_storage(
    start: Start, clock: SimClock, limit: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    served = await Client.of(server)
    assert await served.ask(b"x") == b"x"
    limit[0] = os.dup(server._sockets[0][0].fileno())  # the lowest free one; the kernel would still give out more
    os.close(limit[0])
    for _ in range(3):
        assert await (await Client.of(server)).is_shut_out()
    assert await served.ask(b"y") == b"y"
    assert server.figures.refused == 3
    assert caplog.text.count("kept for storage") == 1
    clock.advance_ms(SHORTAGE_LOG_MS)
    await until(lambda: server.now_ms == clock.monotonic_ms())
    assert await (await Client.of(server)).is_shut_out()
    assert "Closed 3 new connections" in caplog.text
    limit[0] = resource.RLIM_INFINITY
    assert await (await Client.of(server)).ask(b"z") == b"z"


async def test_broker_is_accepted_with_descriptors_that_clients_leave(
    start: Start, limit: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "DESCRIPTORS_KEPT_SHARE", 0.5)
    monkeypatch.setattr(server_module, "DESCRIPTORS_KEPT", 1 << 20)  # the share counts, however many are in use
    server = start()
    server.peer_addresses = {2: "127.0.0.2"}
    next_one = os.dup(server._sockets[0][0].fileno())  # the lowest free one
    os.close(next_one)
    limit[0] = 2 * next_one  # clients have no descriptor left, brokers half as many as are in use
    assert descriptors_for_connections(limit[0]) == next_one
    assert descriptors_for_connections(limit[0], of_peers=True) > next_one + 2
    assert await (await Client.of(server)).is_shut_out()
    assert await (await Client.of(server, own_host="127.0.0.2")).ask(b"x") == b"x"


def test_brokers_leave_half_of_the_kept_descriptors_to_storage() -> None:
    assert descriptors_for_connections(1 << 20, of_peers=True) == (1 << 20) - DESCRIPTORS_KEPT // 2
    assert descriptors_for_connections(400, of_peers=True) == 350
    assert descriptors_for_connections(resource.RLIM_INFINITY, of_peers=True) > 1 << 30


def test_low_descriptor_limit_leaves_most_descriptors_to_connections() -> None:
    assert descriptors_for_connections(1 << 20) == (1 << 20) - DESCRIPTORS_KEPT
    assert descriptors_for_connections(400) == 300
    assert descriptors_for_connections(resource.RLIM_INFINITY) > 1 << 30


# Silence


async def test_a_silent_connection_is_closed_when_its_time_is_over(start: Start, clock: SimClock) -> None:
    server = start()
    client = await Client.of(server)
    assert await client.ask(b"x") == b"x"
    clock.advance_ms(IDLE_MS)
    await until(lambda: server.now_ms == clock.monotonic_ms())
    assert await client.ask(b"still there") == b"still there"
    clock.advance_ms(IDLE_MS + 1)
    assert await client.is_shut_out()
    await until(lambda: not server.connections)


async def test_half_a_frame_and_silence_is_closed(
    start: Start, clock: SimClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = start()
    client = await Client.of(server)
    await client.send(pack(">i", 1_000) + b"half")
    await until(lambda: server.budget.used > 0)
    with caplog.at_level(logging.INFO):
        clock.advance_ms(IDLE_MS + 1)
        assert await client.is_shut_out()
    assert f"silent for {IDLE_MS} ms" in caplog.text
    assert server.budget.used == 0


async def test_half_a_frame_that_grows_by_a_byte_at_a_time_is_closed(start: Start, clock: SimClock) -> None:
    server = start()
    client = await Client.of(server)
    await client.send(pack(">i", 1_000) + b"half")
    await until(lambda: server.budget.used > 0)
    for _ in range(4):
        clock.advance_ms(IDLE_MS // 4)
        await until(lambda: server.now_ms == clock.monotonic_ms())
        await client.send(b".")
    clock.advance_ms(1)
    assert await client.is_shut_out()


async def test_a_negative_idle_time_means_never(start: Start, clock: SimClock) -> None:
    server = start(connections_max_idle_ms=-1)
    client = await Client.of(server)
    assert await client.ask(b"x") == b"x"
    clock.advance_ms(10**9)
    await until(lambda: server.now_ms == clock.monotonic_ms())
    assert await client.ask(b"still there") == b"still there"


async def test_half_a_frame_gives_way_sooner_while_others_wait_for_memory(start: Start, clock: SimClock) -> None:
    server = start(queued_max_request_bytes=100 * KIB, connections_max_idle_ms=-1)
    holding = await Client.of(server)
    await holding.send(pack(">i", 150 * KIB) + bytes(100 * KIB))
    await until(lambda: server.budget.used >= 100 * KIB)
    waiting = await Client.of(server)
    body = bytes(120 * KIB)
    answer = asyncio.create_task(waiting.ask(body))
    await until(lambda: server.budget.is_waited_for)
    clock.advance_ms(HALF_FRAME_MS_MAX + 1)
    assert await holding.is_shut_out()
    assert await answer == body


async def test_connections_get_the_send_buffer_of_the_config(start: Start) -> None:
    server = start(socket_send_buffer_bytes=64 * KIB)
    await (await Client.of(server)).ask(b"x" * 8)
    (connection,) = server.connections
    buffer = connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert buffer == 2 * 64 * KIB, "the kernel doubles it, for its own books"
