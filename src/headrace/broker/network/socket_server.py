"""Listening sockets and the limits on what untrusted clients can make the broker hold."""

import asyncio
import errno
import logging
import resource
import socket
import sys
from collections import Counter
from collections.abc import Callable

from headrace.broker.metrics import NetworkMetrics
from headrace.broker.network.connection import Connection
from headrace.broker.network.memory_pool import MemoryPool
from headrace.broker.runtime.event_loop import iteration_end_scheduler
from headrace.config.settings import Listener, Settings
from headrace.model.clock import Clock
from headrace.protocol.frames import Parts

log = logging.getLogger(__name__)

Dispatch = Callable[[Connection, memoryview], "Parts | None"]

# Maximum bytes of one read, in a buffer that all connections share: a default-sized batch and some more.
RECEIVE_BUFFER_BYTES = 1024 * 1024
# Connections that the kernel may queue while the broker is busy; the kernel lowers it to its own somaxconn.
LISTEN_BACKLOG = 4096
# Connections accepted per listener before the event loop handles other events.
ACCEPTS_PER_ITERATION = 64
# Pause after running out of descriptors, during which connections may end. Without it, the loop would spin on accept.
ACCEPT_PAUSE_S = 0.1
# Descriptors that connections leave to storage. An fsync thread or a checkpoint needs one or two for a moment; the
# others allow segments to roll and topics to be created until connections end. With a low limit, a quarter of it.
DESCRIPTORS_KEPT = 256
DESCRIPTORS_KEPT_SHARE = 0.25
# Connections of other brokers may use half of those, so that clients that hold all others cannot stop replication.
PEERS_LEAVE_SHARE = 0.5
# Connections from the address of another broker that are accepted beyond `max.connections` and `max.connections.per.ip`
# where clients may use the brokers' listener, too. `inter_broker_client.py` opens up to 32; fetchers and failure
# detectors one each.
PEER_CONNECTIONS_MAX = 64
# A client may connect thousands of times a second. One log line per interval counts all connections that were closed
# for lack of descriptors.
SHORTAGE_LOG_MS = 10_000
# Interval of the check for idle connections and of the coarse clock.
HOUSEKEEPING_S = 1.0
# While other connections wait for memory, the rest of a partial frame must arrive within a client's usual timeout.
HALF_FRAME_MS_MAX = 30_000


class Server:
    def __init__(self, settings: Settings, dispatch: Dispatch, clock: Clock) -> None:
        self.loop = asyncio.get_running_loop()
        self.call_at_iteration_end = iteration_end_scheduler(self.loop)
        self.dispatch = dispatch
        self.figures = NetworkMetrics()
        self._settings = settings
        self._clock = clock
        self.now_ms = clock.monotonic_ms()
        self.receive_view = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.frame_bytes_max = settings.integer("socket.request.max.bytes")
        self._per_address_max = settings.integer("max.connections.per.ip")
        self._connections_max = settings.integer("max.connections")
        self._idle_ms_max = settings.integer("connections.max.idle.ms")
        self.budget = MemoryPool(_budget_bytes(settings))
        self.connections: set[Connection] = set()
        self.peer_addresses: dict[int, str] = {}  # by broker id, as this broker connects to it
        self._internal_listener = settings.internal_listener
        # If inter.broker.listener.name is not set, clients may use the brokers' listener as well.
        self._is_for_brokers = len(settings.listeners) > 1 and "inter.broker.listener.name" in settings.broker_configs
        self._by_address: Counter[str] = Counter()
        self._of_peers: set[Connection] = set()  # connections that do not count towards the limits of clients
        self._peers_by_address: Counter[str] = Counter()
        self._sockets: list[tuple[socket.socket, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed_for_descriptors = 0  # connections since the last log line about them
        self._shortage_logged_ms: int | None = None
        self.bound: dict[str, Listener] = {}

    def bind(self) -> None:
        """Binds every listener; port 0 becomes the same free port on all addresses of a listener."""
        for listener in self._settings.listeners:
            port = listener.port
            for family, address in _addresses(listener):
                sock = _bound_socket(family, address, port, self._settings.integer("socket.send.buffer.bytes"))
                port = sock.getsockname()[1]
                self._sockets.append((sock, listener.name))
            self.bound[listener.name] = Listener(listener.name, listener.host, port)

    def serve(self) -> None:
        """Starts to accept connections. Those since `bind` wait in the kernel's queue."""
        for sock, listener in self._sockets:
            self.loop.add_reader(sock.fileno(), self._accept, sock, listener)
        self._tick()

    def _accept(self, sock: socket.socket, listener: str) -> None:
        for _ in range(ACCEPTS_PER_ITERATION):
            try:
                client, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_failed(sock, listener, error)
                return
            self._connected(client, address[0], listener)

    def _accept_failed(self, sock: socket.socket, listener: str, error: OSError) -> None:
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            raise error
        log.error("cannot accept connections: %s; raise the limit with `ulimit -n`", error.strerror)
        self.loop.remove_reader(sock.fileno())
        self.loop.call_later(ACCEPT_PAUSE_S, self._accept_again, sock, listener)

    def _accept_again(self, sock: socket.socket, listener: str) -> None:
        if sock.fileno() >= 0:
            self.loop.add_reader(sock.fileno(), self._accept, sock, listener)

    def _refuse_for_descriptors(self, client: socket.socket) -> None:
        client.close()
        self.figures.refused += 1
        self._closed_for_descriptors += 1
        logged = self._shortage_logged_ms
        if logged is None or self.now_ms - logged >= SHORTAGE_LOG_MS:
            log.error(
                "Closed %d new connections: only the descriptors kept for storage are free; "
                "raise the limit with `ulimit -n`, or set max.connections",
                self._closed_for_descriptors,
            )
            self._shortage_logged_ms, self._closed_for_descriptors = self.now_ms, 0

    def _connected(self, client: socket.socket, host: str, listener: str) -> None:
        may_be_peer = self._may_be_peer(host, listener)
        soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if client.fileno() >= descriptors_for_connections(soft_limit, of_peers=may_be_peer):
            self._refuse_for_descriptors(client)
            return
        clients = len(self.connections) - len(self._of_peers)
        is_over_limit = self._by_address[host] >= self._per_address_max or clients >= self._connections_max
        if is_over_limit and not may_be_peer:
            log.warning(
                "refusing a connection from %s: it has %d, all clients together %d",
                host,
                self._by_address[host],
                clients,
            )
            self.figures.refused += 1
            client.close()
            return
        self.figures.accepted += 1
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self, client, host, listener)
        connection.last_active_ms = self.now_ms
        self.connections.add(connection)
        if is_over_limit or (may_be_peer and self._is_for_brokers):
            self._of_peers.add(connection)
            self._peers_by_address[host] += 1
        else:
            self._by_address[host] += 1

    def _may_be_peer(self, host: str, listener: str) -> bool:
        """Whether another broker may have opened the connection; it is then accepted beyond the limits of clients."""
        if listener != self._internal_listener:
            return False
        if self._is_for_brokers:
            return True
        return host in self.peer_addresses.values() and self._peers_by_address[host] < PEER_CONNECTIONS_MAX

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        is_of_peer = connection in self._of_peers
        self._of_peers.discard(connection)
        counts = self._peers_by_address if is_of_peer else self._by_address
        counts[connection.client_host] -= 1
        if not counts[connection.client_host]:
            del counts[connection.client_host]

    def _tick(self) -> None:
        """Updates the coarse clock; closes idle connections and, while memory is short, stalled partial frames."""
        self.now_ms = self._clock.monotonic_ms()
        if self._idle_ms_max >= 0:
            oldest = self.now_ms - self._idle_ms_max
            for connection in [one for one in self.connections if one.last_active_ms < oldest]:
                connection.close(f"silent for {self._idle_ms_max} ms")
        if self.budget.is_waited_for:
            self._make_room()
        self._timer = self.loop.call_later(HOUSEKEEPING_S, self._tick)

    def _make_room(self) -> None:
        oldest = self.now_ms - HALF_FRAME_MS_MAX
        for connection in [one for one in self.connections if one.has_partial_frame and one.last_active_ms < oldest]:
            connection.close(f"half a request for {HALF_FRAME_MS_MAX} ms while others wait for memory")

    def stop_listening(self) -> None:
        for sock, _ in self._sockets:
            self.loop.remove_reader(sock.fileno())
            sock.close()
        self._sockets.clear()

    def close(self) -> None:
        self.stop_listening()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.close(None)


def descriptors_for_connections(limit: int, *, of_peers: bool = False) -> int:
    """Returns the lowest descriptor number whose connection is closed at once; `of_peers`: for other brokers.

    The kernel assigns the lowest free number, so nearly all lower ones are then in use by files and connections.
    """
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    kept = min(DESCRIPTORS_KEPT, int(limit * DESCRIPTORS_KEPT_SHARE))
    return limit - (int(kept * PEERS_LEAVE_SHARE) if of_peers else kept)


def _budget_bytes(settings: Settings) -> int:
    """`queued.max.request.bytes`; where that is unlimited, 512 MiB."""
    configured = settings.integer("queued.max.request.bytes")
    return configured if configured > 0 else 512 * 1024 * 1024


def _addresses(listener: Listener) -> list[tuple[socket.AddressFamily, str]]:
    """Returns every address of the host once; an empty host means all interfaces of both families."""
    if not listener.host:
        return [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")]  # noqa: S104  # asked for by name
    found = socket.getaddrinfo(listener.host, None, type=socket.SOCK_STREAM)
    addresses: dict[tuple[socket.AddressFamily, str], None] = {}
    for family, _, _, _, sockaddr in found:
        if family in (socket.AF_INET, socket.AF_INET6):
            addresses[(family, str(sockaddr[0]))] = None
    return sorted(addresses, key=lambda one: one[0])


def _bound_socket(family: socket.AddressFamily, address: str, port: int, send_bytes: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if send_bytes >= 0:
            # inherited by every connection that it accepts
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind((address, port))
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        hint = "is another broker running there?" if error.errno == errno.EADDRINUSE else "check the listeners"
        raise OSError(error.errno, f"cannot listen on {address} port {port}: {error.strerror}; {hint}") from error
    return sock
