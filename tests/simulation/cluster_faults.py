"""What goes wrong in a simulated cluster: crashes, power cuts, broken networks, slow disks, one after the other.

Every fault takes its decisions from the world's random numbers, so that a seed is one story. Which faults there are to
choose from is the world's bias.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.testing.simulation.files import SimFiles
from headrace.testing.simulation.store import STORE
from tests.simulation import cluster_disk_faults, cluster_operations
from tests.simulation.cluster_clients import TOPIC
from tests.simulation.cluster_node import SimNode

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld

FAULTS_S = 12.0  # how long there is trouble


MODULES = (cluster_disk_faults, cluster_operations)


def named(fault: str) -> Callable[["Trouble"], Awaitable[None]]:
    """A fault of another module, by its name."""
    return next(getattr(module, fault) for module in MODULES if hasattr(module, fault))


class Trouble:
    def __init__(self, world: "ClusterWorld", faults: tuple[str, ...]) -> None:
        self.world = self._world = world
        self.random, self.network, self.nodes, self.note = world.random, world.network, world.nodes, world.note
        self.flushes_before_ack, self.min_isr = world.flushes_before_ack, world.min_isr
        self.clones: list[SimFiles] = []  # disks of machines that were copied
        self._faults = [getattr(self, name) if hasattr(self, name) else partial(named(name), self) for name in faults]
        self._names = faults

    async def brew(self) -> None:
        """One fault after the other, until it is enough or a promise is broken."""
        world = self._world
        end_s = world.loop.time() + FAULTS_S
        while world.loop.time() < end_s and world.broken is None:
            await asyncio.sleep(self.random.random() * 1.2)
            number = self.random.choice(range(len(self._faults)))
            self.note(self._names[number])
            await self._faults[number]()

    def _some_node(self) -> SimNode:
        return self.random.choice(self.nodes)

    async def _crash(self) -> None:
        node = self._some_node()
        if not node.is_up:
            return
        self.end(node)
        await asyncio.sleep(self.random.choice([0.05, 0.5, 3.0]))
        node.start()

    def end(self, node: SimNode) -> None:
        may_lose = self.flushes_before_ack or self.nobody_else_has_lost(node)
        if may_lose and self.random.random() < 0.5:
            self.note("power", node.node_id)
            node.lose_power()
        else:
            self.note("kill", node.node_id)
            node.kill()

    async def all_well(self, wait_s: float = 5.0) -> bool:
        """Heal the network, start all brokers, and wait until every replica is in sync, as every broker knows."""
        self.network.heal()
        for node in self.nodes:
            self.network.resume(node.node_id)
            if node._life is None:
                node.start()
        for _ in range(int(wait_s / 0.1)):
            if self._world.broken is None and self._world.is_well() and self._is_known_to_all():
                return True
            await asyncio.sleep(0.1)
        return False

    def _is_known_to_all(self) -> bool:
        revision = self._world.store.ledger.revision
        return all(node.broker is not None and node.broker.image.revision == revision for node in self.nodes)

    def nobody_else_has_lost(self, node: SimNode) -> bool:
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
        if not first.is_up or not (self.flushes_before_ack or self.nobody_else_has_lost(first)):
            return
        self.note("power", first.node_id)
        first.lose_power()
        await asyncio.sleep(self.random.choice([0.0, 0.0, 0.3]))
        leaders = [node for node in self.nodes if node is not first and node.is_up and self.leads_something(node)]
        leader = self.random.choice(leaders) if leaders else None
        if leader is not None:
            self.note("kill", leader.node_id)
            leader.kill()
        first.start()
        await asyncio.sleep(self.random.choice([0.1, 4.0]))
        if leader is not None:
            leader.start()

    @staticmethod
    def leads_something(node: SimNode) -> bool:
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
        leaders = [node for node in self.nodes if node.is_up and self.leads_something(node)]
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
            self.end(leader)
            leader.start()

    async def _slow_disk(self) -> None:
        self._some_node().disk_delay_s = self.random.choice([0.01, 0.1, 0.6])

    async def _crash_all(self) -> None:
        if not self.flushes_before_ack or self.random.random() < 0.5:
            return
        for node in self.nodes:
            if node.is_up:
                self.end(node)
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

    async def _join_unheard(self) -> None:
        """A replica is in sync again, its leader does not hear so, goes on without it, and is gone soon after.

        Not among the faults that chance chooses from: it is a long way to a single rule, the maximal ISR.
        """
        leaders = [node for node in self.nodes if node.broker is not None and self.leads_something(node)]
        if not leaders:
            return
        leader = self.random.choice(leaders)
        follower = self.nodes[leader.node_id % len(self.nodes)]  # the next in the order of replicas
        if not follower.is_up:
            return
        follower.kill()
        await asyncio.sleep(3.0)
        follower.start()
        for _ in range(300):
            await asyncio.sleep(0.001)
            if leader.broker is not None and follower.node_id in leader.broker.image.live_brokers():
                break
        self.network.cut(STORE, leader.node_id)
        await asyncio.sleep(self.random.random())
        self.network.cut(follower.node_id, leader.node_id)
        await asyncio.sleep(self.random.random())
        if leader.is_up:
            leader.kill()
        await asyncio.sleep(3.0)
        self.network.heal()
        if leader._life is None:
            leader.start()
