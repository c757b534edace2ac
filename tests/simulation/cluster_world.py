"""A whole cluster under faults, by seed: real brokers on simulated disks, clocks and network, with real requests.

One seed is one order of events. Plain producers and consumers are in every life; transactions, a group and
reassignments each in many (`cluster_bias.py`). What is promised them, and checked while the cluster lives and at its
end, is listed in `cluster_promises.py`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any
from uuid import UUID

from headrace.core.controller.restored_metadata import PRODUCER_ID_MAX
from headrace.core.controller.topic_control import NewTopic
from headrace.model.errors import HeadraceError
from headrace.testing.simulation.clock import DEFAULT_WALL_MS
from headrace.testing.simulation.files import PowerLost
from headrace.testing.simulation.loop import SimLoop
from headrace.testing.simulation.network import SimNetwork
from headrace.testing.simulation.store import SimStore
from tests.simulation.cluster_bias import CASTS, Bias
from tests.simulation.cluster_checks import Inspector
from tests.simulation.cluster_clients import TOPIC, Client, ConsumerClient, ProducerClient
from tests.simulation.cluster_disk_faults import repair
from tests.simulation.cluster_faults import Trouble
from tests.simulation.cluster_moves import Moves
from tests.simulation.cluster_node import SimNode, track_tasks
from tests.simulation.cluster_promises import BrokenPromise, Ledger, LoopBlocked, NotWellAgain
from tests.simulation.cluster_transactions import Transactions
from tests.unit.storage.io.small_preallocation import small_rooms

CALM_S_MAX = 60.0  # how long it may take until all is well again
SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "broker.clock.skew.max.ms": str(2**62),  # promises hold whatever the clocks say
    "replica.lag.time.max.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "700",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "1000",
}


class ClusterWorld:
    def __init__(self, seed: int, loop: SimLoop, bias: Bias) -> None:
        self.loop = loop
        self.random = Random(seed)
        self.network = SimNetwork(Random(self.random.random()))
        self.store = SimStore(self.network, Random(self.random.random()))
        roles = CASTS[seed % len(CASTS)] if bias.roles is None else bias.roles
        by_dice = self.random.choice([1, 2])
        self.partition_count = 2 if Transactions in roles else by_dice
        self.moves_replicas = Moves in roles
        self.internal_topics = {role.topic: 1 for role in roles if role.topic is not None}  # with their partitions
        self.min_isr = self.random.choice([1, 2, 2] if bias.min_isr is None else [bias.min_isr])
        # With Kafka's own policy, a power cut takes what was not synced: then only one broker at a time may have one.
        by_chance = self.random.random() < 0.7
        self.flushes_before_ack = by_chance if bias.flushes_before_ack is None else bias.flushes_before_ack
        self.nodes = [
            SimNode(number, self.network, self.store, Random(self.random.random()), {**SETTINGS, **bias.settings})
            for number in (1, 2, 3)
        ]
        self.epochs = [0] * self.partition_count  # the newest in which records are known to be
        self.weeks = 0  # how often all clocks were set forward
        self.wall_offset_ms = 0
        self.was_restored = False  # the metadata, from an older snapshot
        self.ledgers = [Ledger() for _ in range(self.partition_count)]
        self.topic_id: UUID | None = None
        self.producer_ids = PRODUCER_ID_MAX + 1  # of plain producers: no broker gives out such an id
        self.values = 0
        self.trace: list[tuple[Any, ...]] = []
        self.broken: BaseException | None = None
        self.is_calm = self.is_over = False
        self._inspector = Inspector(self)
        self._backfill_ms = bias.backfill_ms
        self._topic_configs = bias.topic_configs
        self._trouble = Trouble(self, bias.faults)
        self._roles = [role(self) for role in roles]

    # What the clients know

    def wall_ms(self) -> int:
        return DEFAULT_WALL_MS + int(self.loop.time() * 1000) + self.wall_offset_ms

    def record_ms(self) -> int:
        """The timestamp of a plain record: of a back-fill, it is an old one."""
        return self.wall_ms() - self._backfill_ms

    def new_value(self) -> str:
        self.values += 1
        return f"v{self.values}"

    def note(self, *what: Any) -> None:
        self.trace.append((round(self.loop.time(), 6), *what))

    def acknowledged(self, index: int, base_offset: int, values: list[str], broker: int) -> None:
        self.note("acked", index, base_offset, len(values), broker)
        for number, value in enumerate(values):
            self.ledgers[index].acked_at(base_offset + number, value)

        self._note_epoch(index)

    def read(self, index: int, offset: int, value: str) -> None:
        self.ledgers[index].read(offset, value)
        self._note_epoch(index)

    def _note_epoch(self, index: int) -> None:
        self.epochs[index] = max([self.epochs[index], *(one.leader_epoch for one in self._inspector.copies(index))])

    # A life

    async def live(self) -> None:
        self.loop.set_exception_handler(self._failed)
        ends = self.loop.create_task(self.store.run())
        for node in self.nodes:
            node.start()
        await self.until(lambda: all(node.is_up for node in self.nodes), "the brokers start")
        await self._create_topic()
        for role in self._roles:
            await role.prepare()
        watching = self.loop.create_task(self._inspector.watch_leaders())
        clients = [self.loop.create_task(self._run(client)) for client in self._clients()]
        try:
            await self._trouble.brew()
            self.raise_broken()
            await self._calm()
            self.is_over = True
            await asyncio.gather(*clients)
            self.raise_broken()
            for role in self._roles:
                await role.check()
            await self._inspector.compare()
            self._check_loops()
        finally:
            self.is_over = True
            for task in (ends, watching, *clients):
                task.cancel()
            await asyncio.gather(ends, watching, *clients, return_exceptions=True)

    def _check_loops(self) -> None:
        for node in self.nodes:
            if node.syncs_on_loop:
                raise LoopBlocked(node.syncs_on_loop[0])

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, PowerLost) or error is None:
            return  # the last words of a broker that is gone
        if self.broken is None:
            self.broken = error

    def _clients(self) -> list[Client]:
        plain: list[Client] = [ProducerClient(self, 0), ProducerClient(self, 1)]
        plain += [ConsumerClient(self, 2), ConsumerClient(self, 3)]
        # In company one of each will do: more would only take time.
        return plain[::2] + [client for role in self._roles for client in role.clients] if self._roles else plain

    async def _run(self, client: Client) -> None:
        try:
            await client.run(lambda: self.is_over or self.broken is not None)
        except Exception as error:
            self.broken = self.broken or error

    async def _create_topic(self) -> None:
        wanted = NewTopic(
            TOPIC,
            assignments={index: self._replicas(index) for index in range(self.partition_count)},
            configs={
                "min.insync.replicas": str(self.min_isr),
                "flush.policy": "fsync" if self.flushes_before_ack else "replicated",
                "internal.segment.bytes": "2000",
                "index.interval.bytes": "300",
                **self._topic_configs,
            },
        )
        broker = self.nodes[0].broker
        assert broker is not None
        await self.until(lambda: len(broker.image.live_brokers()) == len(self.nodes), "everybody is there")
        outcome = (await self.nodes[0].run(broker.controller.create_topics([wanted])))[TOPIC]
        if isinstance(outcome, HeadraceError):
            raise outcome
        self.topic_id = outcome.topic_id

    @staticmethod
    def _replicas(index: int) -> tuple[int, ...]:
        return ((1, 2, 3), (2, 3, 1))[index % 2]

    # Calm

    async def _calm(self) -> None:
        self.network.heal()
        for node in self.nodes:
            node.disk_delay_s = 0.01
            self.network.resume(node.node_id)
            node.files.heal()
            node.files.capacity_bytes = None
            await repair(self._trouble, node)
            if not node.is_up and node._life is None:
                node.start()
        self.is_calm = True
        await self.until(self.is_well, "all is well again")
        self.note("well")

    def is_well(self) -> bool:
        if self.broken is not None:
            return True
        brokers = [node.broker for node in self.nodes]
        for broker in brokers:
            if broker is None or TOPIC not in broker.image.topics:
                return False
            for topic in broker.image.topics.values():
                for state in topic.partitions:
                    if len(state.isr) != len(self.nodes) or state.leader < 0:
                        return False
        return True

    async def until(self, condition: Callable[[], bool], what: str, broken: type[BrokenPromise] = NotWellAgain) -> None:
        end_s = self.loop.time() + CALM_S_MAX
        while not condition():
            self.raise_broken()
            if self.loop.time() > end_s:
                raise broken(f"not within {CALM_S_MAX:.0f} s: {what}; {self.story()}")
            await asyncio.sleep(0.05)
        self.raise_broken()

    async def within(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """The same, for somebody who has to do something for it."""
        task = self.loop.create_task(work)
        try:
            await self.until(task.done, what)
            task.result()
        finally:
            task.cancel()

    def leader_node(self, topic: str, index: int) -> SimNode | None:
        """The broker that leads, as all brokers know it; None while they do not agree."""
        leaders = {
            node.broker.image.topics[topic].partitions[index].leader
            for node in self.nodes
            if node.broker is not None and topic in node.broker.image.topics
        }
        return next((node for node in self.nodes if leaders == {node.node_id}), None)

    def end_of(self, index: int) -> int:
        return max(copy.log_end_offset for copy in self._inspector.copies(index))

    def raise_broken(self) -> None:
        if self.broken is not None:
            raise self.broken

    def story(self) -> str:
        lines = []
        for node in self.nodes:
            broker = node.broker
            lines.append(f"node {node.node_id}: {'up' if broker else 'down'}")
            if broker is not None and TOPIC in broker.image.topics:
                lines.append(f"  facts at {broker.image.revision}: {broker.image.topics[TOPIC].partitions}")
                lines += [
                    f"  {one}: epoch {one.leader_epoch}, {one.log_start_offset}..{one.high_watermark}.."
                    f"{one.log_end_offset}, failure {one.failure}"
                    for one in broker.partitions.all()
                ]
        return "\n".join(lines)


def live(seed: int, bias: Bias = Bias()) -> ClusterWorld:  # noqa: B008 - a value that never changes
    """One life of a cluster; raises what was broken, with the seed."""
    logging.disable(logging.CRITICAL)
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    track_tasks(loop)
    world: ClusterWorld | None = None

    async def run() -> ClusterWorld:
        nonlocal world
        world = ClusterWorld(seed, loop, bias)
        await world.live()
        return world

    try:
        with small_rooms():
            return loop.run_until_complete(run())
    except BaseException as error:
        if world is not None:
            last = "\n".join(map(str, world.trace[-25:]))
            error.add_note(f"seed {seed}: HEADRACE_CLUSTER_SEED={seed}\n{last}\n{world.story()}")
        raise
    finally:
        logging.disable(logging.NOTSET)
        if world is not None:
            for node in world.nodes:
                if node._life is not None:
                    node._life.end()
            left = [task for task in asyncio.all_tasks(loop) if not task.done()]
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            for node in world.nodes:
                node.close()
            for files in world._trouble.clones:
                files.close()
        asyncio.set_event_loop(None)
        loop.close()
