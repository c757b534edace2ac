"""A broker that starts and stops many times on one simulated disk, with a fault at any step."""

import asyncio
from collections.abc import Callable
from random import Random
from uuid import UUID

from headrace.broker.replica.log_flusher import LogFlusher
from headrace.broker.server import Broker
from headrace.config.settings import Listener, Settings
from headrace.core.controller.topic_control import NewTopic
from headrace.core.image import records
from headrace.metadata.embedded import MemoryStore
from headrace.metadata.store import LeaseId
from headrace.model.errors import HeadraceError
from headrace.testing import SimClock, SimFiles
from headrace.testing.simulation.files import PowerLost
from tests.unit.broker.partition_kit import CommitByHand, produce, values_of

LISTENER = Listener("PLAINTEXT", "sim", 9092)
PARTITIONS = 2
# Small segments: every run of a few records rolls, so that starts find inactive segments as well.
TOPIC_CONFIGS = {"internal.segment.bytes": "400"}


class Commits(CommitByHand):
    def close(self) -> None:
        """As the real one: what is dirty is synced when its log is closed."""
        self.dirty = {}


class NoSockets:
    """As much of a Server as a Broker uses."""

    def __init__(self) -> None:
        self.bound = {LISTENER.name: LISTENER}

    def bind(self) -> None: ...

    def serve(self) -> None: ...

    def close(self) -> None: ...


class SimBroker(Broker):
    def _new_group_commit(self, loop: asyncio.AbstractEventLoop) -> LogFlusher:
        return Commits()  # type: ignore[return-value]


class Machine:
    """The disk and the metadata store of one node, which outlive its processes."""

    def __init__(self, files: SimFiles, *, is_clustered: bool = False) -> None:
        self.files = files
        self.clock = SimClock()
        self.store = MemoryStore(self.clock)
        self.is_clustered = is_clustered
        self.acked: dict[int, dict[int, str]] = {index: {} for index in range(PARTITIONS)}  # by partition and offset

    def new_broker(self) -> Broker:
        settings = Settings(node_id=1, data_dir="/data", listeners=(LISTENER,))
        broker = SimBroker(settings, self.clock, self.files, self.store, shares_store=self.is_clustered)
        broker.server = NoSockets()  # type: ignore[assignment]
        return broker

    async def started(self) -> Broker:
        broker = self.new_broker()
        await broker.start()
        return broker

    async def created(self) -> Broker:
        broker = await self.started()
        rows = await broker.controller.create_topics([NewTopic("t", PARTITIONS, 1, configs=TOPIC_CONFIGS)])
        assert not isinstance(rows["t"], HeadraceError), rows["t"]
        return broker

    def produce(self, broker: Broker, count: int) -> None:
        """Records that are acknowledged, one commit each."""
        for index, acked in self.acked.items():
            partition = broker.partitions.get("t", index)
            for _ in range(count):
                value = f"value {partition.log_end_offset}"
                offset = produce(partition, value).base_offset
                self.commit(broker)
                acked[offset] = value

    def produce_unsynced(self, broker: Broker) -> None:
        for index in self.acked:
            produce(broker.partitions.get("t", index), "unsynced")

    def commit(self, broker: Broker) -> None:
        commits = broker.group_commit
        assert isinstance(commits, Commits)
        commits.run()

    async def kill(self) -> None:
        """SIGKILL: the page cache stays."""
        await _end_other_tasks()
        self.files.boots += 1

    async def lose_power(self) -> None:
        await _end_other_tasks()
        self.files.lose_power(torn=Random(7))
        if self.is_clustered:  # a host takes longer to boot than a session lasts
            for entry in (await self.store.load(records.SESSIONS)).entries.values():
                await self.store.revoke(LeaseId(records.session_lease(entry.value)))

    def lost(self, broker: Broker) -> list[str]:
        """Acknowledged records that a consumer does not read at their offsets."""
        lost = []
        for index, acked in self.acked.items():
            found = dict(enumerate(values_of(broker.partitions.get("t", index))))
            lost += [f"t-{index} offset {at}: {value}" for at, value in acked.items() if found.get(at) != value]
        return lost


async def _end_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


# How a process may end.


async def stop_cleanly(machine: Machine, broker: Broker) -> None:
    await broker.stop()


async def be_killed(machine: Machine, broker: Broker) -> None:
    machine.produce_unsynced(broker)
    await machine.kill()


async def lose_power(machine: Machine, broker: Broker) -> None:
    machine.produce_unsynced(broker)
    await machine.lose_power()


ENDS = {"clean stop": stop_cleanly, "kill -9": be_killed, "power failure": lose_power}


async def try_to_start(broker: Broker, spoil: Callable[[Broker], None]) -> Exception | None:
    """A start that may fail, and the stop that follows in any case; returns what went wrong."""
    spoil(broker)
    failure: Exception | None = None
    try:
        await broker.start()
    except PowerLost:
        raise
    except Exception as error:
        failure = error
    try:
        await broker.stop()
    except Exception as error:
        failure = failure or error
    return failure


def topic_id_of(broker: Broker) -> UUID:
    return broker.image.topics["t"].topic_id
