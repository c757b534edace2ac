"""One broker without sockets, threads and real time: bytes of a client in, bytes for the client out.

    with BrokerUnderTest() as broker:
        client = broker.connect()
        client.send(frames)
        broker.settle()                   # everything that happens without time passing
        broker.pass_time(500)             # milliseconds
        client.received(), client.is_closed

Every run is the same run: time is simulated, and what is random (member ids, topic ids, fetch session ids) follows from
`reseed`. This is the only module of the golden test that imports the product.
"""

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from struct import unpack_from
from typing import Any
from unittest import mock

from headrace.broker.api.fast_path import FALLBACK
from headrace.broker.handlers.data.produce_fast_path import ProduceFastPath
from headrace.broker.handlers.group.offset_commit_fast_path import OffsetCommitFastPath
from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.core.controller.topic_control import NewTopic
from headrace.metadata.embedded import MemoryStore
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.testing.simulation.loop import SimLoop

WALL_START_MS = 1_700_000_000_000
NODE_ID = 1
OTHER_ID = 2
OTHERS_TOPICS = {"elsewhere": 2, "__consumer_offsets": 1, "__transaction_state": 1}
RACK = "rack-a"
ADVERTISED = Listener("PLAINTEXT", "broker.example", 9092)
CLIENT_HOST = "10.20.30.40"
DATA_DIR = "/data"
CONFIGS = {
    "inter.broker.listener.name": "PLAINTEXT",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "offset.metadata.max.bytes": "100",
}
# How long a sync takes on a broker whose storage is a disk.
SYNC_MS = 10
PATH_OF_AUTHORIZER = "headrace.broker.server.AllowAll"


class BrokerUnderTest:
    def __init__(
        self, *, wait_until_flushed: bool = False, after_another: bool = False, fast_paths: bool = True
    ) -> None:
        """On disk: what is written is committed after SYNC_MS. In memory it is committed at once.

        After another: a broker of the same cluster leads what it has created before (`OTHERS_TOPICS`), and has stopped.
        """
        self._on_disk = wait_until_flushed
        self._after_another = after_another
        self._fast_paths = fast_paths
        self._loop = _Loop()
        self._random = _SeededRandom()
        self._authorizer = _Authorizer()
        self._exits = ExitStack()
        self._clients: list[Client] = []
        self.errors: list[str] = []  # what the broker logged as its own bug
        self.fast_requests = 0  # that were answered without being read in full
        self.sync_ms = SYNC_MS

    def __enter__(self) -> "BrokerUnderTest":
        self._exits.enter_context(self._random.installed())
        self._exits.enter_context(_default_log_levels())
        self._exits.enter_context(self._errors_collected())
        if self._fast_paths:
            self._exits.enter_context(_fast_requests_counted(self._took_fast_path))
        else:
            self._exits.enter_context(_without_fast_paths())
        self._broker = self._loop.run_until_complete(self._started())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._loop.run_until_complete(self._broker.stop())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            for client in self._clients:
                client.release()
            self._exits.close()

    async def _started(self) -> Broker:
        clock = _Clock(self._loop)
        store = MemoryStore(clock)
        if self._after_another:
            settings = _settings(OTHER_ID, "rack-b", wait_until_flushed=False)
            other = Broker(settings, clock, MemoryFiles(), store, shares_store=True)
            await other.start()
            topics = [NewTopic(name=name, partitions=count) for name, count in OTHERS_TOPICS.items()]
            await other.controller.create_topics(topics)
            await other.stop()
        settings = _settings(NODE_ID, RACK, wait_until_flushed=self._on_disk)
        kind = _BrokerOnSlowDisk if self._on_disk else Broker
        with mock.patch(PATH_OF_AUTHORIZER, return_value=self._authorizer):
            broker = kind(settings, clock, MemoryFiles(), store)
        if isinstance(broker, _BrokerOnSlowDisk):
            broker.group_commit.sync_ms = lambda: self.sync_ms
        await broker.start()
        return broker

    @contextmanager
    def _errors_collected(self) -> Iterator[None]:
        handler = _ErrorHandler(self.errors)
        logger = logging.getLogger("headrace")
        logger.addHandler(handler)
        self._loop.set_exception_handler(lambda _, context: self.errors.append(str(context)))
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def _took_fast_path(self, requests: int) -> None:
        self.fast_requests += requests

    def connect(self) -> "Client":
        client = Client(self._loop, self._broker)
        self._clients.append(client)
        return client

    def reseed(self, seed: str) -> None:
        """What is random from now on follows from the seed alone."""
        self._random.reseed(seed)

    def deny(self, *, types: Collection[int] | None = None, names: Collection[str] | None = None) -> None:
        """From now on: what is of these resource types (Kafka's numbers) and has these names; None: all there are."""
        self._authorizer.denied = (types, names)

    def allow_everything(self) -> None:
        self._authorizer.denied = None

    def settle(self) -> None:
        self._loop.run_for(0)

    def pass_time(self, milliseconds: int) -> None:
        self._loop.run_for(milliseconds)


def _settings(node_id: int, rack: str, *, wait_until_flushed: bool) -> Settings:
    return Settings(
        node_id=node_id,
        rack=rack,
        data_dir=DATA_DIR,
        storage="disk" if wait_until_flushed else "memory",
        listeners=(),
        advertised=(ADVERTISED,),
        broker_configs=CONFIGS,
    )


class Client:
    """One connection, from the client's end."""

    def __init__(self, loop: "_Loop", broker: Broker) -> None:
        self._socket = _Socket(loop)
        self._taken = 0
        broker.server._connected(self._socket, CLIENT_HOST, ADVERTISED.name)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        """The broker receives it in one piece, if it fits into its receive buffer."""
        self._socket.input += data

    def close(self) -> None:
        self._socket.has_ended = True

    @property
    def is_closed(self) -> bool:
        return self._socket.is_closed

    def received(self) -> list[bytes]:
        """The responses that came since the last call, each without its size."""
        data = self._socket.output()
        frames = []
        while len(data) - self._taken >= 4:
            (size,) = unpack_from(">i", data, self._taken)
            if len(data) - self._taken - 4 < size:
                break
            frames.append(data[self._taken + 4 : self._taken + 4 + size])
            self._taken += 4 + size
        return frames

    def release(self) -> None:
        self._socket.release()


class _Socket:
    """The broker's end of a connection. Output goes to a file in memory, so that `sendfile` works too."""

    def __init__(self, loop: "_Loop") -> None:
        self._loop = loop
        self._output_fd = os.memfd_create("client")
        self.input = bytearray()
        self.has_ended = False
        self.is_closed = False
        loop.sockets[self._output_fd] = self

    @property
    def is_readable(self) -> bool:
        return bool(self.input) or self.has_ended

    def output(self) -> bytes:
        return os.pread(self._output_fd, os.fstat(self._output_fd).st_size, 0)

    def release(self) -> None:
        if self._output_fd >= 0:
            self._loop.sockets.pop(self._output_fd, None)
            os.close(self._output_fd)
            self._output_fd = -1

    # As the broker sees it

    def fileno(self) -> int:
        return self._output_fd

    def setblocking(self, flag: bool) -> None: ...

    def setsockopt(self, *option: object) -> None: ...

    def recv_into(self, buffer: memoryview) -> int:
        size = min(len(buffer), len(self.input))
        if not size and not self.has_ended:
            raise BlockingIOError
        buffer[:size] = self.input[:size]
        del self.input[:size]
        return size

    def send(self, data: Any, flags: int = 0) -> int:
        return os.write(self._output_fd, data)

    def sendmsg(self, pieces: Sequence[Any], ancillary: object = (), flags: int = 0) -> int:
        return os.writev(self._output_fd, pieces)

    def shutdown(self, how: int = socket.SHUT_RDWR) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.is_closed = True


class _Loop(SimLoop):
    """Simulated time that passes only as far as the test says; sockets are those of this module."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Selector(self)
        self._readers: dict[int, Callable[[], object]] = {}
        self._writers: dict[int, Callable[[], object]] = {}
        self.sockets: dict[int, _Socket] = {}
        self.until_s: float | None = None  # None: as far as timers are due

    def run_for(self, milliseconds: int) -> None:
        self.until_s = round(self.time() * 1000 + milliseconds) / 1000
        self.run_forever()
        self.until_s = None

    def set_time(self, now_s: float) -> None:
        self._now_s = now_s

    def ready(self) -> list[Callable[[], object]]:
        readable = [callback for fd, callback in self._readers.items() if self.sockets[fd].is_readable]
        return [*readable, *self._writers.values()]

    def add_reader(  # type: ignore[override]  # a descriptor is a number here
        self, fd: int, callback: Callable[..., object], *arguments: Any
    ) -> None:
        self._readers[fd] = lambda: callback(*arguments)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(  # type: ignore[override]  # a descriptor is a number here
        self, fd: int, callback: Callable[..., object], *arguments: Any
    ) -> None:
        self._writers[fd] = lambda: callback(*arguments)

    def remove_writer(self, fd: Any) -> bool:
        return self._writers.pop(fd, None) is not None

    def _process_events(self, event_list: list[Any]) -> None:
        for callback in event_list:
            self.call_soon(callback)


class _Selector:
    def __init__(self, loop: _Loop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Callable[[], object]]:
        loop = self._loop
        timeout = loop.end_turn(timeout)
        ready = loop.ready()
        if ready or timeout == 0:
            return ready
        if loop.until_s is None:
            assert timeout is not None, "the broker waits, and no timer is set"
            loop.set_time(loop.time() + timeout)
        elif timeout is None or loop.time() + timeout > loop.until_s:
            loop.set_time(loop.until_s)
            loop.stop()
        else:
            loop.set_time(loop.time() + timeout)
        return []


class _Clock:
    """Whole milliseconds, whatever the sum of several timers is."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop

    def wall_ms(self) -> int:
        return WALL_START_MS + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1000)


class _SeededRandom:
    """Random bytes and numbers of the whole process, for as long as a broker runs."""

    def __init__(self) -> None:
        self._seed, self._count = "", 0

    def reseed(self, seed: str) -> None:
        self._seed, self._count = seed, 0
        random.seed(seed)

    def _bytes(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            self._count += 1
            out += sha256(f"{self._seed} {self._count}".encode()).digest()
        return out[:size]

    @contextmanager
    def installed(self) -> Iterator[None]:
        state = random.getstate()
        self.reseed("start")
        try:
            with mock.patch("os.urandom", self._bytes):  # uuid4 is made of these
                yield
        finally:
            random.setstate(state)


class _Authorizer:
    """Allows everything, until it is told what to deny."""

    denied: tuple[Collection[int] | None, Collection[str] | None] | None = None

    @property
    def is_open(self) -> bool:
        return self.denied is None

    def allows(self, principal: object, host: str, access: tuple[int, int], name: str) -> bool:
        if self.denied is None:
            return True
        types, names = self.denied
        return (types is not None and access[0] not in types) or (names is not None and name not in names)

    def allows_some(self, principal: object, host: str, access: tuple[int, int]) -> bool:
        if self.denied is None:
            return True
        types, names = self.denied
        return names is not None or (types is not None and access[0] not in types)


class _SlowDisk:
    """Group commit without threads: each round takes as long as the test says."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._syncing: dict[Any, bool] = {}  # whether the partition is dirty again
        self.sync_ms: Callable[[], int] = lambda: SYNC_MS

    def request(self, partition: Any) -> None:
        if partition in self._syncing:
            self._syncing[partition] = True
            return
        self._syncing[partition] = False
        self._loop.call_later(self.sync_ms() / 1000, self._end, partition, partition.log.take_unflushed()[1])

    def _end(self, partition: Any, offset: int) -> None:
        if self._syncing.pop(partition):
            self.request(partition)
        partition.synced(offset)

    def close(self) -> None: ...


class _BrokerOnSlowDisk(Broker):
    group_commit: Any

    def _new_group_commit(self, loop: asyncio.AbstractEventLoop) -> Any:
        return _SlowDisk(loop)


class _ErrorHandler(logging.Handler):
    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        self._errors.append(self.format(record))


@contextmanager
def _default_log_levels() -> Iterator[None]:
    """DescribeConfigs tells them, and other tests may have set others."""
    before = {name: logging.getLogger(name).level for name in (None, "headrace")}
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("headrace").setLevel(logging.NOTSET)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _fast_requests_counted(count: Callable[[int], None]) -> Iterator[None]:
    def counted(name: str, kind: type[Any], requests_of: Callable[[Any], int]) -> Any:
        original = getattr(kind, name)

        def call(*arguments: Any) -> Any:
            outcome = original(*arguments)
            count(requests_of(outcome))
            return outcome

        return mock.patch.object(kind, name, call)

    with ExitStack() as patches:
        for kind in (ProduceFastPath, OffsetCommitFastPath):
            patches.enter_context(counted("__call__", kind, lambda parts: int(parts is not FALLBACK)))
        patches.enter_context(counted("run", ProduceFastPath, lambda run: run.requests if run else 0))
        yield


@contextmanager
def _without_fast_paths() -> Iterator[None]:
    """Every request is read in full."""
    with ExitStack() as patches:
        for kind in (ProduceFastPath, OffsetCommitFastPath):
            patches.enter_context(mock.patch.object(kind, "__call__", return_value=FALLBACK))
        patches.enter_context(mock.patch.object(ProduceFastPath, "run", return_value=None))
        yield
