"""One simulated broker: the real Broker, with a simulated disk, network, clock and store around it.

A crash ends every task that this life of the broker has begun, and makes its files unusable to whatever is left.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from functools import partial
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from headrace.broker.broker import Broker
from headrace.broker.group_commit import GroupCommit
from headrace.broker.partition import Partition
from headrace.client.peer import Peer
from headrace.model.errors import StorageError
from headrace.model.settings import Listener, Settings
from headrace.testing.clock import DEFAULT_WALL_MS
from headrace.testing.sim_files import PowerLost, SimFiles
from headrace.testing.sim_loop import SimLoop, SimLoopClock
from headrace.testing.sim_mount import Mounted
from headrace.testing.sim_network import SimNetwork
from headrace.testing.sim_store import SimStore
from tests.simulation.cluster_promises import LogDamaged, check_whole

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

    def __init__(self, loop: asyncio.AbstractEventLoop, node: "SimNode") -> None:
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
        work = [(partition, *partition.log.begin_round()) for partition in self._dirty]
        self._dirty = {}
        is_early = self._random.random() < 0.5  # the disk may be done long before anybody hears of it
        outcomes = [_sync(*item) for item in work] if is_early else None
        self._loop.call_later(self._random.random() * self._node.disk_delay_s, self._end, work, outcomes)

    def _end(self, work: list[Any], outcomes: list[StorageError | None] | None) -> None:
        outcomes = [_sync(*item) for item in work] if outcomes is None else outcomes
        self._is_running = bool(self._dirty)
        if self._dirty:
            self._begin()
        for (partition, _, offset), error in zip(work, outcomes, strict=True):
            if error is None:
                partition.synced(offset)
            else:
                partition.sync_failed(error)

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
    except Exception as error:  # as the real one: the folder of a partition that has moved away is gone
        return StorageError(str(error))
    return None


class NoSockets:
    """As much of a Server as a Broker sees."""

    def __init__(self, hang_up: Callable[[], None]) -> None:
        self.bound = {LISTENER.name: LISTENER}
        self.close = hang_up

    def bind(self) -> None: ...

    def serve(self) -> None: ...


class SimBroker(Broker):
    node: "SimNode"
    network: SimNetwork

    def _new_group_commit(self, loop: asyncio.AbstractEventLoop) -> GroupCommit:
        return SimGroupCommit(loop, self.node)  # type: ignore[return-value]

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
        self._loop = asyncio.get_running_loop()
        self.files = SimFiles()
        skew_ms, rate = random.randrange(-3_600_000, 3_600_000), 1 + random.uniform(-0.0005, 0.0005)
        assert isinstance(self._loop, SimLoop)
        self._clock = SimLoopClock(self._loop, DEFAULT_WALL_MS, skew_ms=skew_ms, rate=rate)
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

    async def _start(self, life: Life) -> None:
        SimBroker.node, SimBroker.network = self, self._network
        while not life.is_over:
            handle = self._store.handle(self.node_id)
            broker = SimBroker(self._settings, self._clock, Mounted(self.files), handle, shares_store=True)
            broker.server = NoSockets(partial(self._network.silence, self.node_id))  # type: ignore[assignment]
            broker.controller._new_uuid = lambda: UUID(int=self.random.getrandbits(128))
            try:
                await broker.start()
            except StorageError as error:
                raise LogDamaged(f"broker {self.node_id} does not start: {error}") from error
            except Exception as error:
                if life.is_over:
                    return
                if not getattr(error, "retriable", False):
                    raise
                await asyncio.sleep(0.3)  # as a supervisor would
                continue
            check_whole(broker.partitions.all())
            self._network.serve(self.node_id, partial(copy_context().run, broker.dispatcher))  # type: ignore[arg-type, call-arg]
            self.broker = broker
            return

    def run(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """As if the broker did it by itself: it ends with the broker."""
        token = LIFE.set(self._life)
        try:
            return asyncio.create_task(work)
        finally:
            LIFE.reset(token)

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
