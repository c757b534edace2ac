"""One simulated broker: the real Broker, with a simulated disk, network, clock and store around it.

A crash ends every task that this life of the broker has begun, and makes its files unusable to whatever is left.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from random import Random
from traceback import format_stack
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from headrace.broker.replica.log_flusher import LogFlusher
from headrace.broker.replica.partition import Partition
from headrace.broker.server import Broker
from headrace.client.aio.broker_connection import Peer
from headrace.config.settings import Listener, Settings
from headrace.model.errors import StorageError
from headrace.testing.simulation.clock import DEFAULT_WALL_MS
from headrace.testing.simulation.files import PowerLost, SimFiles
from headrace.testing.simulation.loop import SimLoop, SimLoopClock
from headrace.testing.simulation.mounted_disk import MountedDisk
from headrace.testing.simulation.network import SimNetwork
from headrace.testing.simulation.store import SimStore
from tests.simulation.cluster_promises import LogDamaged, check_whole
from tests.simulation.copied_files import copied

Result = TypeVar("Result")
LISTENER = Listener("PLAINTEXT", "sim", 9092)

# Which life of which broker a task or timer belongs to; inherited by whatever it begins.
LIFE: ContextVar["Life | None"] = ContextVar("LIFE", default=None)


class Life:
    """From a start to a stop or crash."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_over = False

    def end(self) -> None:
        self.is_over = True
        for task in sorted(self.tasks, key=lambda task: task.get_name()):
            task.cancel()


def track_tasks(loop: SimLoop) -> None:
    """Tasks know whose life they belong to."""
    numbers = iter(range(10**9))

    def new_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
        options["name"] = f"{next(numbers):09d}"  # so that they can be put in order
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        life = LIFE.get()
        if life is not None:
            if life.is_over:
                task.cancel()
            life.tasks.add(task)
            task.add_done_callback(life.tasks.discard)
        return task

    loop.set_task_factory(new_task)


class SimGroupCommit:
    """Group commit without a thread: a round takes a while, and may be cut short by a crash at any point of it."""

    def __init__(self, loop: SimLoop, node: "SimNode") -> None:
        self._loop = loop
        self._node = node
        self._random = node.random
        self._dirty: dict[Partition, None] = {}
        self._is_running = False

    def request(self, partition: Partition) -> None:
        self._dirty[partition] = None
        if not self._is_running:
            self._is_running = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        work = [(partition, *partition.log.take_unflushed()) for partition in self._dirty]
        self._dirty = {}
        is_early = self._random.random() < 0.5  # the disk may be done long before anybody hears of it
        outcomes = self._sync(work) if is_early else None
        self._loop.call_later(self._random.random() * self._node.disk_delay_s, self._end, work, outcomes)

    def _end(self, work: list[Any], outcomes: list[StorageError | None] | None) -> None:
        outcomes = self._sync(work) if outcomes is None else outcomes
        self._is_running = bool(self._dirty)
        if self._dirty:
            self._begin()
        for (partition, _, offset), error in zip(work, outcomes, strict=True):
            if error is None:
                partition.synced(offset)
            else:
                partition.sync_failed(error)

    def _sync(self, work: list[Any]) -> list[StorageError | None]:
        with self._loop.in_thread():
            return [_sync(*item) for item in work]

    def close(self) -> None:
        self._dirty = {}


def _sync(partition: Partition, files: list[Any], offset: int) -> StorageError | None:
    try:
        for file in files:
            file.sync()
    except PowerLost:
        raise
    except StorageError as error:
        return error
    except Exception as error:  # as the real one: the folder of a partition that was moved to another broker is gone
        return StorageError(str(error))
    return None


class StartFault(NamedTuple):
    """What fails while a broker starts: its port, joining the cluster, a file operation; or it is told to stop."""

    step: str  # "bind", "join", "disk", "stop"
    operation: str = ""
    nth: int = 1
    error: int = 0
    after_s: float = 60.0


NO_FAULT = StartFault("")


class StartFailed(Exception):
    """A start fails as it was ordered to."""


class NoSockets:
    """As much of a Server as a Broker sees."""

    def __init__(self, hang_up: Callable[[], None], fault: StartFault = NO_FAULT) -> None:
        self.bound = {LISTENER.name: LISTENER}
        self.close = hang_up
        self._fault = fault

    def bind(self) -> None:
        if self._fault.step == "bind":
            raise StartFailed("the port is in use")

    def serve(self) -> None: ...


class SimBroker(Broker):
    node: "SimNode"
    network: SimNetwork
    start_fault = NO_FAULT

    def _new_group_commit(self, loop: asyncio.AbstractEventLoop) -> LogFlusher:
        assert isinstance(loop, SimLoop)
        return SimGroupCommit(loop, self.node)  # type: ignore[return-value]

    async def _check_cluster(self, cluster_id: str) -> None:
        if self.start_fault.step == "join":
            raise StartFailed("the clock is wrong")
        await super()._check_cluster(cluster_id)

    async def connect(self, node_id: int) -> Peer:
        return self.network.connect(self.node_id, node_id)


class SimNode:
    """A machine: its disk and clock outlive its broker."""

    def __init__(self, node_id: int, network: SimNetwork, store: SimStore, random: Random, settings: dict[str, str]):
        self.node_id = node_id
        self._network = network
        self._store = store
        self.random = random
        self.disk_delay_s = random.choice([0.01, 0.01, 0.2])  # the most that a sync takes
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self._loop = loop
        self.files = SimFiles()
        self.disks = 1  # that this machine has had
        self.start_fault = NO_FAULT  # of the next start
        self.syncs_on_loop: list[str] = []  # of which there may be none while the broker serves
        skew_ms, rate = random.randrange(-3_600_000, 3_600_000), 1 + random.uniform(-0.0005, 0.0005)
        self._clock = SimLoopClock(self._loop, DEFAULT_WALL_MS, skew_ms=skew_ms, rate=rate)
        self._install(self.files)
        self._settings = Settings(node_id=node_id, data_dir="/data", listeners=(LISTENER,), broker_configs=settings)
        self.broker: SimBroker | None = None
        self._life: Life | None = None

    @property
    def is_up(self) -> bool:
        return self.broker is not None

    def start(self) -> None:
        """The broker begins to start; it is up when it serves."""
        self._life = Life()
        self.run(self._start(self._life))

    def new_broker(self, files: SimFiles, fault: StartFault = NO_FAULT) -> SimBroker:
        SimBroker.node, SimBroker.network = self, self._network
        broker = SimBroker(
            self._settings, self._clock, MountedDisk(files), self._store.handle(self.node_id), shares_store=True
        )
        broker.start_fault = fault
        broker.server = NoSockets(partial(self._network.silence, self.node_id), fault)  # type: ignore[assignment]
        broker.controller._new_uuid = lambda: UUID(int=self.random.getrandbits(128))
        return broker

    async def _start(self, life: Life) -> None:
        while not life.is_over:
            fault, self.start_fault = self.start_fault, NO_FAULT
            try:
                if fault.step == "disk":
                    self.files.fail(fault.operation, nth=fault.nth, error=fault.error)
                broker = self.new_broker(self.files, fault)
            except StorageError as error:
                self._check_ordered(fault, error)
                self._end_process(life)
                return
            try:
                async with asyncio.timeout(fault.after_s if fault.step == "stop" else None):
                    await broker.start()
            except Exception as error:
                if life.is_over:
                    return
                if fault is NO_FAULT and getattr(error, "retriable", False):
                    await asyncio.sleep(0.3)  # as a supervisor would
                    continue
                self._check_ordered(fault, error)
                await self._stop_started(broker, life)
                return
            check_whole(broker.partitions.all())
            self._network.serve(self.node_id, partial(copy_context().run, broker.dispatcher))  # type: ignore[arg-type, call-arg]
            self.broker = broker
            return

    def _check_ordered(self, fault: StartFault, error: Exception) -> None:
        if fault is not NO_FAULT:
            return
        if isinstance(error, StorageError):
            raise LogDamaged(f"broker {self.node_id} does not start: {error}") from error
        raise error

    async def _stop_started(self, broker: SimBroker, life: Life) -> None:
        """What was started of a broker is stopped, as its process does, and the process ends."""
        with suppress(Exception):
            await broker.stop()
        if not life.is_over:
            self._end_process(life)

    def _end_process(self, life: Life) -> None:
        self._network.silence(self.node_id)
        self.files.boots += 1
        self._life = None
        life.end()

    def run(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """As if the broker did it by itself: it ends with the broker."""
        token = LIFE.set(self._life)
        try:
            return asyncio.create_task(work)
        finally:
            LIFE.reset(token)

    def _check_off_loop(self, path: str) -> None:
        if self.is_up and not self._loop.is_in_thread:
            self.syncs_on_loop.append(f"broker {self.node_id} syncs {path}:\n{''.join(format_stack(limit=12))}")

    def kill(self) -> None:
        """kill -9: what was written is in the page cache, synced or not."""
        self._end_life()
        self.files.boots += 1

    def lose_power(self) -> None:
        self._end_life()
        self.files.lose_power(torn=Random(self.random.random()) if self.random.random() < 0.7 else None)

    def _end_life(self) -> None:
        self._network.silence(self.node_id)
        if self._life is not None:
            self._life.end()
            self._life = None
        self.broker = None

    def replace_disk(self) -> None:
        """An empty disk instead of the one it had. The broker is not running."""
        self.files.close()
        self.files = SimFiles()
        self.disks += 1
        self.files.disk_id = f"disk {self.disks}"
        self._install(self.files)

    def restore_disk(self, image: SimFiles) -> None:
        """The disk as it was when `image` was copied. The broker is not running."""
        image.boots = self.files.boots
        image.disk_id = self.files.disk_id
        self.files.close()
        self.files = image
        self._install(self.files)

    def _install(self, files: SimFiles) -> None:
        files.watch_syncs = self._check_off_loop
        files.wall_ms = self._clock.wall_ms

    def copied_disk(self) -> SimFiles:
        """Of a machine that was cloned while it ran."""
        copy = copied(self.files)
        copy.disk_id = f"copy of disk {self.disks}"
        copy.wall_ms = self._clock.wall_ms
        return copy

    def advance_wall(self, milliseconds: int) -> None:
        self._clock.advance_wall(milliseconds)
        if self.broker is None:
            return
        # Producers expire by the monotonic clock, which timers see too: only their idle time grows.
        for partition in self.broker.partitions.all():
            for entry in partition.log.producers.active():
                if entry.idle_since_ms is not None:
                    entry.idle_since_ms -= milliseconds

    async def stop(self) -> None:
        """A clean stop, with everything handed over if there is somebody to take it."""
        broker, life = self.broker, self._life
        if broker is None or life is None:
            return
        self.broker = None
        try:
            await self.run(broker.stop())
        except asyncio.CancelledError:
            if not life.is_over:
                raise
        self._network.silence(self.node_id)
        if self._life is life:
            life.end()
            self._life = None

    def close(self) -> None:
        self.files.close()
