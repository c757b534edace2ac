"""A connection between two ends of a socket pair: the product's at one, a test's at the other."""

import asyncio
import socket
from collections.abc import Callable
from struct import pack, unpack

from headrace.broker.metrics import NetworkMetrics
from headrace.broker.network.connection import Connection
from headrace.broker.network.memory_pool import MemoryPool
from headrace.broker.network.response_queue import ResponseSlot
from headrace.broker.runtime.event_loop import iteration_end_scheduler
from headrace.protocol.frames import Parts

KIB = 1024
MIB = 1024 * KIB

Dispatch = Callable[[Connection, memoryview], "Parts | None"]


def frame(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


def echo(connection: Connection, request: memoryview) -> Parts:
    return [frame(bytes(request))]


class Answering:
    """Keeps a place for every answer, and gives them when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[bytes, ResponseSlot]] = []

    def __call__(self, connection: Connection, request: memoryview) -> None:
        self.waiting.append((bytes(request), connection.reserve_slot()))

    def answer(self, number: int = 0) -> None:
        request, reply = self.waiting.pop(number)
        reply.send([frame(request)])


class StandInServer:
    """As much of a Server as a Connection sees."""

    def __init__(self, dispatch: Dispatch, *, budget_bytes: int = MIB, frame_bytes_max: int = MIB) -> None:
        self.loop = asyncio.get_running_loop()
        self.call_at_iteration_end = iteration_end_scheduler(self.loop)
        self.dispatch = dispatch
        self.budget = MemoryPool(budget_bytes)
        self.receive_view = memoryview(bytearray(256 * KIB))
        self.frame_bytes_max = frame_bytes_max
        self.figures = NetworkMetrics()
        self.now_ms = 0
        self.gone: list[Connection] = []

    def disconnected(self, connection: Connection) -> None:
        self.gone.append(connection)

    def connect(self) -> "Peer":
        return self._between(*socket.socketpair())

    def connect_by_tcp(self) -> "Peer":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        return self._between(ours, theirs)

    def _between(self, ours: socket.socket, theirs: socket.socket) -> "Peer":
        for end in (ours, theirs):
            end.setblocking(False)
        return Peer(Connection(self, ours, "10.0.0.1", "PLAINTEXT"), theirs, self)  # type: ignore[arg-type]


class Peer:
    """The client's end, and the connection that it talks to."""

    def __init__(self, connection: Connection, sock: socket.socket, server: StandInServer) -> None:
        self.connection = connection
        self.server = server
        self.socket = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        """Returns when the broker's side has had its turn with it."""
        await self._loop.sock_sendall(self.socket, data)
        await settle()

    async def receive(self) -> bytes:
        size = unpack(">i", await self._exactly(4))[0]
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(self.socket, size - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data

    async def is_closed(self) -> bool:
        await settle()
        return self.connection.closed and await self._loop.sock_recv(self.socket, 1) == b""

    def has_nothing(self) -> bool:
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True

    def close(self) -> None:
        self.connection.close(None)
        self.socket.close()


async def until(condition: Callable[[], bool]) -> None:
    """For what happens on another thread, or when a timer says so."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for, by design of what is tested
            await asyncio.sleep(0.001)


async def settle() -> None:
    """Every callback that is due, and those that they make due."""
    for _ in range(20):
        await asyncio.sleep(0)
