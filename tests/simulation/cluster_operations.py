"""What operators do at a bad time: restored metadata, cloned machines, changed policies, clocks set forward."""

import asyncio
from typing import TYPE_CHECKING

from headrace.core.controller.config_control import Alteration, Operation
from headrace.core.image.deltas import MetadataDelta
from headrace.core.image.model import ConfigResource, ResourceType
from tests.simulation.cluster_clients import PATIENCE_S, TOPIC
from tests.simulation.cluster_node import LIFE, Life, SimNode
from tests.simulation.cluster_promises import TwoLeaders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.simulation.cluster_faults import Trouble

DAY_MS = 24 * 3600 * 1000
WEEKS_MAX = 2


async def restore_metadata(trouble: "Trouble") -> None:
    """All brokers stop at once while every replica has the same records, and come back to metadata of an earlier time.

    As the runbook says, producers stop before. Otherwise the log of a leader may end with records of a new epoch that
    no other replica has, and only a comparison of the logs shows that the others are behind.
    """
    backup = trouble.world.store.ledger.snapshot("")
    await _elections(trouble)
    if not await trouble.all_well(wait_s=20.0) or not await _logs_are_equal(trouble):
        return
    for node in trouble.nodes:
        trouble.end(node)
    await asyncio.sleep(2.5)  # their sessions are over
    trouble.note("restored", backup.revision, trouble.world.store.ledger.revision)
    trouble.world.store.restore(backup)
    trouble.world.was_restored = True
    for node in trouble.random.sample(trouble.nodes, len(trouble.nodes)):
        node.start()
        await asyncio.sleep(trouble.random.random() * 2)
    await asyncio.sleep(3.0)


async def _logs_are_equal(trouble: "Trouble", wait_s: float = 10.0) -> bool:
    """Wait for a moment in which every replica has every record, and knows that the others have it."""
    for _ in range(int(wait_s / 0.002)):
        brokers = [node.broker for node in trouble.nodes]
        states = [
            {
                str(one): (one.newest_log_epoch, one.log_end_offset, one.high_watermark)
                for one in broker.partitions.all()
            }
            for broker in brokers
            if broker is not None
        ]
        if len(states) == len(brokers) and all(state == states[0] for state in states):
            return True
        await asyncio.sleep(0.002)
    return False


async def restore_metadata_of_lagging(trouble: "Trouble") -> None:
    """A replica falls behind after the snapshot; in the snapshot it is in sync.

    The operator compares the log ends of the stopped brokers (`headrace log ends`), and moves the directories of
    replicas that are behind away.
    """
    if not await trouble.all_well(wait_s=20.0):
        return
    backup = trouble.world.store.ledger.snapshot("")
    behind, *others = trouble.random.sample(trouble.nodes, len(trouble.nodes))
    ends = {behind.node_id: log_ends(behind)}
    behind.kill()
    await asyncio.sleep(trouble.random.choice([1.0, 4.0, 6.0]))
    if any(not node.is_up for node in others):
        return
    for node in others:
        ends[node.node_id] = log_ends(node)
        node.kill()
    await asyncio.sleep(2.5)  # their sessions are over
    trouble.note("restored", backup.revision, trouble.world.store.ledger.revision, behind.node_id)
    trouble.world.store.restore(backup)
    trouble.world.was_restored = True
    move_away_replicas_behind(trouble.nodes, ends)
    for node in [behind, *trouble.random.sample(others, len(others))]:
        node.start()
        await asyncio.sleep(trouble.random.random() * 4)
    await asyncio.sleep(3.0)


def log_ends(node: SimNode) -> dict[int, tuple[int, int]]:
    """By partition: leader epoch and log end offset, as in the files."""
    held = node.broker.partitions.all() if node.broker is not None else ()
    return {one.index: (one.newest_log_epoch, one.log_end_offset) for one in held if one.topic == TOPIC}


def move_away_replicas_behind(nodes: "Sequence[SimNode]", ends: "Mapping[int, Mapping[int, tuple[int, int]]]") -> None:
    for node in nodes:
        for index, end in ends[node.node_id].items():
            if end < max(of_node[index] for of_node in ends.values()):
                node.files.remove_tree(f"/data/{TOPIC}-{index}")


async def _elections(trouble: "Trouble") -> None:
    """Leaders change a few times, and their followers write what an earlier leader did not have."""
    for _ in range(trouble.random.randrange(1, 4)):
        leaders = [node for node in trouble.nodes if node.is_up and trouble.leads_something(node)]
        if leaders:
            node = trouble.random.choice(leaders)
            node.kill()
            await asyncio.sleep(trouble.random.choice([0.5, 3.0]))
            node.start()
        await asyncio.sleep(trouble.random.random() * 2)


async def clone_node(trouble: "Trouble") -> None:
    """A machine is copied while it runs, and the copy is started beside it."""
    trouble.network.heal()
    node = trouble.random.choice(trouble.nodes)
    if not node.is_up or trouble.network.is_paused(node.node_id):
        return
    trouble.note("cloned", node.node_id)
    files = node.copied_disk()
    life = Life()
    token = LIFE.set(life)
    try:
        broker = node.new_broker(files)
        start = asyncio.create_task(broker.start())
    finally:
        LIFE.reset(token)
    for _ in range(40):
        await asyncio.sleep(0.1)
        if start.done() and not start.cancelled() and start.exception() is None:
            _compare(trouble, node, broker)
    life.end()
    await asyncio.gather(start, return_exceptions=True)
    files.boots += 1
    trouble.clones.append(files)


def _compare(trouble: "Trouble", node: SimNode, copy: object) -> None:
    for partition in node.broker.partitions.all() if node.broker is not None else ():
        held = copy.partitions.held(partition.topic, partition.index)  # type: ignore[attr-defined]
        if held is None or held.leadership is None or partition.leadership is None:
            continue
        if held.leader_epoch == partition.leader_epoch and partition.failure is held.failure is None:
            error = TwoLeaders(f"two processes of broker {node.node_id} lead {partition}, epoch {held.leader_epoch}")
            trouble.world.broken = trouble.world.broken or error


async def change_policy(trouble: "Trouble") -> None:
    """The topic gets another flush policy, another min.insync.replicas, or another segment size."""
    node = trouble.random.choice(trouble.nodes)
    if node.broker is None:
        return
    world = trouble.world
    name, value = trouble.random.choice(
        [
            ("flush.policy", trouble.random.choice(["fsync", "replicated"])),
            ("min.insync.replicas", trouble.random.choice(["1", "2"])),
            ("internal.segment.bytes", trouble.random.choice(["1000", "4000"])),
            ("retention.ms", trouble.random.choice(["-1", str(30 * DAY_MS)])),
        ]
    )
    trouble.note("policy", name, value)
    if name == "flush.policy" and value == "replicated":
        world.flushes_before_ack = trouble.flushes_before_ack = (
            False  # for good: brokers hear of changes at different times
        )
    if name == "min.insync.replicas":
        trouble.min_isr = min(trouble.min_isr, int(value))
    change = [(ConfigResource(ResourceType.TOPIC, TOPIC), [Alteration(name, Operation.SET, value)])]
    await asyncio.gather(node.run(node.broker.controller.alter_configs(change)), return_exceptions=True)


async def days_pass(trouble: "Trouble") -> None:
    """All clocks move on by days, so that everything expires that is not used. Producers begin a new life after it."""
    world = trouble.world
    if world.weeks >= WEEKS_MAX:
        return
    trouble.network.heal()
    world.weeks += 1
    await asyncio.sleep(2 * PATIENCE_S)  # no request of before is on its way any more
    trouble.note("days pass")
    world.wall_offset_ms += 3 * DAY_MS
    for node in trouble.nodes:
        node.advance_wall(3 * DAY_MS)


async def return_early(trouble: "Trouble") -> None:
    """A replica is removed, and added again as the preferred leader, before its broker learns of the removal."""
    if not await trouble.all_well():
        return
    index = trouble.random.randrange(trouble.world.partition_count)
    leader = trouble.world.leader_node(TOPIC, index)
    late = trouble.random.choice([node for node in trouble.nodes if node is not leader])
    if leader is None or leader.broker is None or late.broker is None:
        return
    trouble.note("removed and added", index, late.node_id)
    may_learn = asyncio.Event()

    async def wait(_: MetadataDelta) -> None:
        await may_learn.wait()

    late.broker.controller._facts._delivery._listeners.insert(0, wait)
    others = tuple(node.node_id for node in trouble.nodes if node is not late)
    states = leader.broker.controller.states
    for replicas in (others, (late.node_id, *others)):
        await asyncio.gather(leader.run(states.reassign({TOPIC: {index: replicas}})), return_exceptions=True)
        await asyncio.sleep(trouble.random.random() * 0.5)
    if leader.broker is not None:
        await asyncio.gather(leader.run(states.elect_leaders({TOPIC: [index]}, unclean=False)), return_exceptions=True)
    may_learn.set()
    await asyncio.sleep(trouble.random.random() * 2)


async def leave_one(trouble: "Trouble") -> None:
    """All brokers but one are killed: too few are in sync for a while. The one that is left restarts now and then."""
    left, *others = trouble.random.sample(trouble.nodes, len(trouble.nodes))
    killed = [node for node in others if node.is_up]
    for node in killed:
        node.kill()
    await asyncio.sleep(trouble.random.choice([1.0, 4.0]))
    if left.is_up and trouble.random.random() < 0.5:
        left.kill()
        left.start()
        await asyncio.sleep(trouble.random.choice([1.0, 4.0]))
    for node in killed:
        if node._life is None:
            node.start()
            await asyncio.sleep(trouble.random.random())
    await asyncio.sleep(trouble.random.random())
