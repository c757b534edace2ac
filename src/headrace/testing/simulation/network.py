"""Simulated network between brokers: delays, loses, duplicates and partitions, driven by a random number generator.

    network = SimNetwork(Random(seed))
    network.serve(1, dispatcher)             # handles frames for node 1
    peer = network.connect(2, 1)             # node 2's connection to node 1
    network.cut(2, 1)                        # drops everything from 2 to 1; the other direction still works
    network.pause(1)                         # node 1 neither receives nor sends until `resume`

Transports whole frames, to the same dispatcher as sockets. Frames of one connection keep their order. A connection
that loses a frame is broken: its users get ConnectionLost, a while later.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random

from headrace.broker.runtime.delayed_operations import DelayedOperations
from headrace.client.aio.broker_connection import ConnectionLost
from headrace.model.errors import StorageError
from headrace.protocol.frames import Part, Parts
from headrace.security.authorization import ANONYMOUS
from headrace.storage.log_types import FileRecords

Dispatch = Callable[["SimConnection", memoryview], "Parts | None"]

DELAY_S_MAX = 0.02
SLOW_DELAY_S_MAX = 0.4
# Maximal time until a broken connection is detected, by a reset or a timeout.
NOTICE_S_MAX = 0.8


class SimNetwork:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._served: dict[int, SimServer] = {}
        self._cuts: set[tuple[int, int]] = set()
        self._paused: set[int] = set()
        self._resumed = asyncio.Event()
        self._peers: dict[SimPeer, None] = {}
        self.slow_probability = 0.02
        self.loss_probability = 0.0
        self.repeat_probability = 0.0

    # Faults

    def cut(self, one: int, other: int) -> None:
        """Drops everything from `one` to `other`."""
        self._cuts.add((one, other))

    def heal(self) -> None:
        """Ends all partitions; paused nodes stay paused."""
        self._cuts.clear()
        self.loss_probability = self.repeat_probability = 0.0
        self.slow_probability = 0.02

    def pause(self, node: int) -> None:
        self._paused.add(node)

    def resume(self, node: int) -> None:
        self._paused.discard(node)
        resumed, self._resumed = self._resumed, asyncio.Event()
        resumed.set()

    def is_paused(self, node: int) -> bool:
        return node in self._paused

    def is_cut(self, one: int, other: int) -> bool:
        return (one, other) in self._cuts

    def delay_s(self) -> float:
        slow = self._random.random() < self.slow_probability
        return self._random.random() * (SLOW_DELAY_S_MAX if slow else DELAY_S_MAX)

    def notice_s(self) -> float:
        return self._random.random() * NOTICE_S_MAX

    def loses(self) -> bool:
        return self._random.random() < self.loss_probability

    def repeats(self) -> bool:
        return self._random.random() < self.repeat_probability

    async def awake(self, node: int) -> None:
        """Returns when the node is not paused."""
        while node in self._paused:
            await self._resumed.wait()

    # Clean-up

    def serve(self, node: int, dispatch: Dispatch) -> "SimServer":
        self._served[node] = SimServer(dispatch)
        return self._served[node]

    def silence(self, node: int) -> None:
        """Ends a node's process and its connections."""
        server = self._served.pop(node, None)
        if server is not None:
            server.is_gone = True
        for peer in list(self._peers):
            if node in (peer.source, peer.target):
                peer.lose_soon()

    def connect(self, source: int, target: int) -> "SimPeer":
        peer = SimPeer(self, source, target)
        self._peers[peer] = None
        return peer

    def forget(self, peer: "SimPeer") -> None:
        self._peers.pop(peer, None)

    def server_of(self, node: int) -> "SimServer | None":
        return self._served.get(node)


class SimServer:
    def __init__(self, dispatch: Dispatch) -> None:
        self.dispatch = dispatch
        self.is_gone = False


class SimPeer:
    """One connection, on the side of the node that opened it."""

    def __init__(self, network: SimNetwork, source: int, target: int) -> None:
        self._network = network
        self.source, self.target = source, target
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[memoryview], None] = {}
        self._arrives_s = 0.0
        self.is_lost = False
        self._connection: SimConnection | None = None

    async def exchange(self, frame: bytes) -> memoryview:
        if self.is_lost:
            raise ConnectionLost("the connection was lost")
        future: asyncio.Future[memoryview] = self._loop.create_future()
        self._waiting[future] = None
        self._arrives_s = max(self._arrives_s, self._loop.time() + self._network.delay_s())
        self._loop.call_at(self._arrives_s, self._arrive, frame, future)
        return await future

    def _arrive(self, frame: bytes, future: "asyncio.Future[memoryview]") -> None:
        network = self._network
        if self.is_lost:
            return
        if network.is_paused(self.target) or network.is_paused(self.source):
            self._loop.call_later(0.05, self._arrive, frame, future)
            return
        server = network.server_of(self.target)
        if server is None or network.is_cut(self.source, self.target) or network.loses():
            self.lose_soon()
            return
        if self._connection is None or self._connection.server is not server:
            self._connection = SimConnection(server, self)
        self._connection.receive(frame, future)
        if network.repeats():
            self._connection.receive(frame, self._loop.create_future())

    def answered(self, answer: bytes, future: "asyncio.Future[memoryview]") -> None:
        self._loop.call_later(self._network.delay_s(), self._return, answer, future)

    def _return(self, answer: bytes, future: "asyncio.Future[memoryview]") -> None:
        network = self._network
        if self.is_lost:
            return
        if network.is_paused(self.target) or network.is_paused(self.source):
            self._loop.call_later(0.05, self._return, answer, future)
            return
        if network.is_cut(self.target, self.source) or network.loses():
            self.lose_soon()
            return
        self._waiting.pop(future, None)
        if not future.done():
            future.set_result(memoryview(answer))

    def lose_soon(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._loop.call_later(self._network.notice_s(), self._lose)

    def _lose(self) -> None:
        self._network.forget(self)
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_exception(ConnectionLost("the connection was lost"))
        if self._connection is not None:
            self._connection.close(None)

    def close(self) -> None:
        self.is_lost = True
        self._lose()


class SimConnection:
    """The part of a Connection that handlers use. Responses leave in the order of their requests.

    As on a socket, nothing more is read before the response to a request that `reserve_last_slot` was called for.
    """

    def __init__(self, server: SimServer, peer: SimPeer) -> None:
        self.server = server
        self._peer = peer
        self.principal = ANONYMOUS
        self.client_host = f"node-{peer.source}"
        self.listener = "PLAINTEXT"
        self.closed = False
        self.durations = None
        self.shortcuts: dict[int, object] = {}
        self._loop = asyncio.get_running_loop()
        self.parked = DelayedOperations(self._loop)
        self._unread: deque[tuple[bytes, asyncio.Future[memoryview]]] = deque()
        self._future: asyncio.Future[memoryview] | None = None  # of the request in progress
        self._replies: deque[SimReply] = deque()
        self._alone: SimReply | None = None

    def receive(self, frame: bytes, future: "asyncio.Future[memoryview]") -> None:
        self._unread.append((frame, future))
        self._read_on()

    def _read_on(self) -> None:
        while self._unread and self._alone is None and not self.closed and not self.server.is_gone:
            frame, self._future = self._unread.popleft()
            parts = self.server.dispatch(self, memoryview(bytearray(frame[4:])))
            if parts is not None:
                self.reserve_slot().send(parts)

    def reserve_slot(self) -> "SimReply":
        assert self._future is not None, "called while a request is handled"
        reply = SimReply(self, self._future)
        self._replies.append(reply)
        return reply

    reserve_slot_with_quick_ack = reserve_slot

    def reserve_last_slot(self) -> "SimReply":
        self._alone = self.reserve_slot()
        return self._alone

    def answered(self) -> None:
        while self._replies and (parts := self._replies[0].parts) is not None:
            reply = self._replies.popleft()
            if reply is self._alone:
                self._alone = None
                self._loop.call_soon(self._read_on)
            if not self.closed and not self.server.is_gone:
                self._send(parts, reply)

    def _send(self, parts: Parts, reply: "SimReply") -> None:
        try:
            self._peer.answered(b"".join(map(_bytes, parts))[4:], reply.future)
        except StorageError as error:  # as on a socket: the response has begun, so the connection can only be closed
            self.close(str(error))

    def close(self, reason: str | None) -> None:
        if not self.closed:
            self.closed = True
            self.parked.cancel_all()
            self._peer.lose_soon()


def _bytes(part: Part) -> bytes:
    if isinstance(part, FileRecords):
        return part.read()
    assert isinstance(part, bytes | bytearray | memoryview), "records are slices of a log"
    return bytes(part)


class SimReply:
    def __init__(self, connection: SimConnection, future: "asyncio.Future[memoryview]") -> None:
        self._connection = connection
        self.future = future
        self.parts: Parts | None = None

    def send(self, parts: Parts) -> None:
        self.parts = parts
        self._connection.answered()

    def abandon(self) -> None:
        self._connection.close("A request failed")
