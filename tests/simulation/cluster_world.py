"""A whole cluster under faults, by seed: real brokers on simulated disks, clocks and network, with real requests.

One seed is one order of events. While it runs, and at its end, the promises are checked:

- a new leader has everything that was acknowledged or read (leader completeness);
- what was acknowledged or read at an offset is there for ever, and nothing else (nothing lost, the watermark never
  goes back for a client);
- in one leader epoch, one broker acknowledges;
- in the end, all replicas are the same.
"""

import asyncio
import logging
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from headrace.broker.partition import Partition
from headrace.core.cluster.topics import NewTopic
from headrace.model.errors import HeadraceError
from headrace.testing.clock import DEFAULT_WALL_MS
from headrace.testing.sim_files import PowerLost
from headrace.testing.sim_loop import SimLoop
from headrace.testing.sim_network import SimNetwork
from headrace.testing.sim_store import STORE, SimStore
from tests.simulation.cluster_clients import (
    TOPIC,
    BrokenPromise,
    ConsumerClient,
    Ledger,
    ProducerClient,
    values_of,
)
from tests.simulation.cluster_node import SimNode, track_tasks

FAULTS_S = 12.0  # how long there is trouble
CALM_S_MAX = 60.0  # how long it may take until all is well again
SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "replica.lag.time.max.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "700",
}


class Bias(NamedTuple):
    """What is left to chance, and what is not: to look for something in particular."""

    waits_for_disk: bool | None = None
    min_isr: int | None = None
    faults: tuple[str, ...] = (
        "_crash",
        "_crash",
        "_stop_cleanly",
        "_cut_brokers",
        "_cut_store",
        "_pause",
        "_lossy_network",
        "_heal",
        "_crash_all",
        "_crash_in_a_row",
        "_crash_in_a_row",
        "_isolate",
        "_return_and_crash",
        "_slow_disk",
    )


class ClusterWorld:
    def __init__(self, seed: int, loop: SimLoop, bias: Bias) -> None:
        self.loop = loop
        self.random = Random(seed)
        self.network = SimNetwork(Random(self.random.random()))
        self.store = SimStore(self.network, Random(self.random.random()))
        self.partition_count = self.random.choice([1, 2])
        self.min_isr = self.random.choice([1, 2, 2] if bias.min_isr is None else [bias.min_isr])
        # With Kafka's own policy, a power cut takes what was not synced: then only one broker at a time may have one.
        by_chance = self.random.random() < 0.7
        self.waits_for_disk = by_chance if bias.waits_for_disk is None else bias.waits_for_disk
        self._faults = [getattr(self, name) for name in bias.faults]
        self.nodes = [
            SimNode(number, self.network, self.store, Random(self.random.random()), SETTINGS) for number in (1, 2, 3)
        ]
        self.ledgers = [Ledger() for _ in range(self.partition_count)]
        self.topic_id: UUID | None = None
        self.producer_ids = 0
        self.values = 0
        self.trace: list[tuple[Any, ...]] = []
        self.broken: BaseException | None = None
        self.is_over = False
        self._led: dict[tuple[int, int], int] = {}

    # What the clients know

    def wall_ms(self) -> int:
        return DEFAULT_WALL_MS + int(self.loop.time() * 1000)

    def new_value(self) -> str:
        self.values += 1
        return f"v{self.values}"

    def note(self, *what: Any) -> None:
        self.trace.append((round(self.loop.time(), 6), *what))

    def acknowledged(self, index: int, base_offset: int, values: list[str], broker: int) -> None:
        self.note("acked", index, base_offset, len(values), broker)
        for number, value in enumerate(values):
            self.ledgers[index].acked_at(base_offset + number, value)

    def read(self, index: int, offset: int, value: str) -> None:
        self.ledgers[index].read(offset, value)

    # A life

    async def live(self) -> None:
        self.loop.set_exception_handler(self._failed)
        ends = self.loop.create_task(self.store.run())
        for node in self.nodes:
            node.start()
        await self._until(lambda: all(node.is_up for node in self.nodes), "the brokers start")
        await self._create_topic()
        watching = self.loop.create_task(self._watch_leaders())
        clients = [self.loop.create_task(self._client(number)) for number in range(4)]
        try:
            await self._trouble()
            await self._calm()
            self.is_over = True
            await asyncio.gather(*clients)
            await self._compare()
        finally:
            self.is_over = True
            for task in (ends, watching, *clients):
                task.cancel()
            await asyncio.gather(ends, watching, *clients, return_exceptions=True)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, PowerLost) or error is None:
            return  # the last words of a broker that is gone
        if self.broken is None:
            self.broken = error

    async def _client(self, number: int) -> None:
        client = ProducerClient(self, number) if number < 2 else ConsumerClient(self, number)
        try:
            await client.run(lambda: self.is_over or self.broken is not None)
        except BrokenPromise as error:
            self.broken = self.broken or error

    async def _create_topic(self) -> None:
        wanted = NewTopic(
            TOPIC,
            assignments={index: self._replicas(index) for index in range(self.partition_count)},
            configs={
                "min.insync.replicas": str(self.min_isr),
                "flush.policy": "fsync" if self.waits_for_disk else "replicated",
                "internal.segment.bytes": "2000",
                "index.interval.bytes": "300",
            },
        )
        broker = self.nodes[0].broker
        assert broker is not None
        await self._until(lambda: len(broker.image.live_brokers()) == len(self.nodes), "everybody is there")
        outcome = (await self.nodes[0].run(broker.controller.create_topics([wanted])))[TOPIC]
        if isinstance(outcome, HeadraceError):
            raise outcome
        self.topic_id = outcome.topic_id

    @staticmethod
    def _replicas(index: int) -> tuple[int, ...]:
        return ((1, 2, 3), (2, 3, 1))[index % 2]

    # Leaders

    async def _watch_leaders(self) -> None:
        """At every election, the new leader's log is compared with what clients know."""
        while True:
            await asyncio.sleep(0.01)
            for node in self.nodes:
                broker = node.broker
                for index in range(self.partition_count):
                    partition = broker.partitions.held(TOPIC, index) if broker is not None else None
                    if partition is not None and partition.leadership is not None:
                        self._leads(node.node_id, partition)

    def _leads(self, node: int, partition: Partition) -> None:
        term = (partition.index, partition.leader_epoch)
        if self._led.get(term) == node:
            return
        try:
            if term in self._led:
                raise BrokenPromise(f"brokers {self._led[term]} and {node} both lead in epoch {term[1]}")
            self._led[term] = node
            self.note("leads", partition.index, partition.leader_epoch, node)
            if all(other.leader_epoch <= term[1] for other in self._copies(partition.index)):
                self.ledgers[partition.index].check_log(values_of(partition), f"the new leader {node} of {partition}")
        except BrokenPromise as error:
            self.broken = self.broken or error

    def _copies(self, index: int) -> list[Partition]:
        held = [node.broker.partitions.held(TOPIC, index) for node in self.nodes if node.broker is not None]
        return [partition for partition in held if partition is not None]

    # Trouble

    async def _trouble(self) -> None:
        end_s = self.loop.time() + FAULTS_S
        while self.loop.time() < end_s and self.broken is None:
            await asyncio.sleep(self.random.random() * 1.2)
            fault = self.random.choice(self._faults)
            self.note(fault.__name__)
            await fault()
        self._raise_broken()

    def _some_node(self) -> SimNode:
        return self.random.choice(self.nodes)

    async def _crash(self) -> None:
        node = self._some_node()
        if not node.is_up:
            return
        self._end(node)
        await asyncio.sleep(self.random.choice([0.05, 0.5, 3.0]))
        node.start()

    def _end(self, node: SimNode) -> None:
        may_lose = self.waits_for_disk or self._nobody_else_has_lost(node)
        if may_lose and self.random.random() < 0.5:
            self.note("power", node.node_id)
            node.lose_power()
        else:
            self.note("kill", node.node_id)
            node.kill()

    def _nobody_else_has_lost(self, node: SimNode) -> bool:
        """Whether everybody is in sync: then the loss of one is covered by the others, if two are to be in sync."""
        others = [one.broker for one in self.nodes if one is not node]
        if self.min_isr < 2 or any(broker is None for broker in others):
            return False
        topics = [broker.image.topics.get(TOPIC) for broker in others if broker is not None]
        return all(
            topic is not None and all(len(state.isr) == len(self.nodes) for state in topic.partitions)
            for topic in topics
        )

    async def _crash_in_a_row(self) -> None:
        """One loses what it had not synced, and the leader goes at the same time or soon after: who takes over?"""
        first = self._some_node()
        if not first.is_up or not (self.waits_for_disk or self._nobody_else_has_lost(first)):
            return
        self.note("power", first.node_id)
        first.lose_power()
        await asyncio.sleep(self.random.choice([0.0, 0.0, 0.3]))
        leaders = [node for node in self.nodes if node is not first and node.is_up and self._leads_something(node)]
        leader = self.random.choice(leaders) if leaders else None
        if leader is not None:
            self.note("kill", leader.node_id)
            leader.kill()
        first.start()
        await asyncio.sleep(self.random.choice([0.1, 4.0]))
        if leader is not None:
            leader.start()

    @staticmethod
    def _leads_something(node: SimNode) -> bool:
        return node.broker is not None and any(one.leadership is not None for one in node.broker.partitions.all())

    async def _isolate(self) -> None:
        """Clients still reach it; brokers and the store do not."""
        node = self._some_node()
        for other in [*(one.node_id for one in self.nodes if one is not node), STORE]:
            self.network.cut(node.node_id, other)
            self.network.cut(other, node.node_id)
        await asyncio.sleep(self.random.choice([1.5, 4.0]))

    async def _return_and_crash(self) -> None:
        """A leader writes on its own for a while, is back, cuts what nobody else has, and crashes soon after."""
        leaders = [node for node in self.nodes if node.is_up and self._leads_something(node)]
        if not leaders:
            return
        leader = self.random.choice(leaders)
        for other in [*(one.node_id for one in self.nodes if one is not leader), STORE]:
            self.network.cut(leader.node_id, other)
            self.network.cut(other, leader.node_id)
        await asyncio.sleep(4.0)
        self.network.heal()
        await asyncio.sleep(self.random.random() * 2.5)
        if leader.is_up:
            self._end(leader)
            leader.start()

    async def _slow_disk(self) -> None:
        self._some_node().disk_delay_s = self.random.choice([0.01, 0.1, 0.6])

    async def _crash_all(self) -> None:
        if not self.waits_for_disk or self.random.random() < 0.5:
            return
        for node in self.nodes:
            if node.is_up:
                self._end(node)
        await asyncio.sleep(self.random.choice([0.1, 3.0]))
        for node in self.random.sample(self.nodes, len(self.nodes)):
            if node._life is None:
                node.start()
                await asyncio.sleep(self.random.random())

    async def _stop_cleanly(self) -> None:
        node = self._some_node()
        if not node.is_up or self.network.is_paused(node.node_id):
            return
        await node.stop()
        await asyncio.sleep(self.random.random())
        if node._life is None:
            node.start()

    async def _cut_brokers(self) -> None:
        one, other = self.random.sample(self.nodes, 2)
        self.network.cut(one.node_id, other.node_id)
        if self.random.random() < 0.6:
            self.network.cut(other.node_id, one.node_id)

    async def _cut_store(self) -> None:
        node = self._some_node()
        if self.random.random() < 0.7:
            self.network.cut(node.node_id, STORE)
        self.network.cut(STORE, node.node_id)

    async def _pause(self) -> None:
        node = self._some_node()
        self.network.pause(node.node_id)
        await asyncio.sleep(self.random.choice([0.2, 1.0, 3.5]))
        self.network.resume(node.node_id)

    async def _lossy_network(self) -> None:
        self.network.loss_probability = 0.05
        self.network.repeat_probability = 0.05
        self.network.slow_probability = 0.2

    async def _heal(self) -> None:
        self.network.heal()

    # Calm

    async def _calm(self) -> None:
        self.network.heal()
        for node in self.nodes:
            node.disk_delay_s = 0.01
            self.network.resume(node.node_id)
            if not node.is_up and node._life is None:
                node.start()
        await self._until(self._is_well, "all is well again")
        self.note("well")

    def _is_well(self) -> bool:
        if self.broken is not None:
            return True
        brokers = [node.broker for node in self.nodes]
        for broker in brokers:
            if broker is None or TOPIC not in broker.image.topics:
                return False
            for state in broker.image.topics[TOPIC].partitions:
                if len(state.isr) != len(self.nodes) or state.leader < 0:
                    return False
        return True

    async def _until(self, condition: Any, what: str) -> None:
        end_s = self.loop.time() + CALM_S_MAX
        while not condition():
            self._raise_broken()
            if self.loop.time() > end_s:
                raise BrokenPromise(f"not within {CALM_S_MAX:.0f} s: {what}; {self.story()}")
            await asyncio.sleep(0.05)
        self._raise_broken()

    def _raise_broken(self) -> None:
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

    async def _compare(self) -> None:
        """Everything that was promised is on every replica, and all replicas are the same."""
        for index, ledger in enumerate(self.ledgers):
            await self._until(lambda index=index: self._is_settled(index), f"the replicas of {TOPIC}-{index} settle")
            first, *others = [values_of(partition) for partition in self._copies(index)]
            ledger.check_log(first, f"{TOPIC}-{index} in the end")
            if any(other != first for other in others):
                raise BrokenPromise(f"the replicas of {TOPIC}-{index} differ: {first} {others}")
            counted = list(first.values())
            if len(set(counted)) != len(counted):
                raise BrokenPromise(f"a record is twice in {TOPIC}-{index}")

    def _is_settled(self, index: int) -> bool:
        copies = self._copies(index)
        ends = {(one.log_end_offset, one.high_watermark) for one in copies}
        return len(copies) == len(self.nodes) and len(ends) == 1 and len({*ends.pop()}) == 1


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
        asyncio.set_event_loop(None)
        loop.close()
