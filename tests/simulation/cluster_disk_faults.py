"""Faults of starts and disks: file operations that fail, starts that fail at any step, full and replaced disks."""

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.testing.simulation.files import OPERATIONS, SimFiles
from tests.simulation.cluster_clients import CLIENT, TOPIC
from tests.simulation.cluster_node import SimNode, StartFault
from tests.simulation.cluster_promises import NotServed
from tests.simulation.cluster_topics import NAME
from tests.simulation.copied_files import copied

if TYPE_CHECKING:
    from tests.simulation.cluster_faults import Trouble

# A sync that fails leaves bytes in the page cache that a later start takes for synced; not simulated here.
FAILING = tuple(sorted(OPERATIONS - {"sync", "sync_dir"}))
ERRORS = (errno.ENOSPC, errno.ENOENT, errno.EIO)
START_S = 10.0  # how long a start may take that nothing holds up
SERVED_S = 20.0  # how long after a fault of one broker alone each partition takes records again
CLIENTS = range(CLIENT, CLIENT + 50)


async def failing_start(trouble: "Trouble") -> None:
    """Any kind of stop, then starts of which the first ones fail, each at another step."""
    node = trouble.random.choice(trouble.nodes)
    if not node.is_up or trouble.network.is_paused(node.node_id):
        return
    if trouble.random.random() < 0.3:
        await node.stop()
    else:
        trouble.end(node)
    if node._life is not None:
        return  # it was killed while it stopped, and is started again by another fault
    for _ in range(trouble.random.choice([1, 1, 2])):
        node.start_fault = some_start_fault(trouble)
        trouble.note("start fails", node.node_id, *node.start_fault)
        node.start()
        await _started(node)
        node.files.heal()
        if node._life is not None:
            node.kill()  # its partitions may be offline, or it waits for the store
    node.start()


def some_start_fault(trouble: "Trouble") -> StartFault:
    random = trouble.random
    step = random.choice(["bind", "join", "disk", "disk", "disk", "stop"])
    if step == "disk":
        return StartFault(step, random.choice(FAILING), random.randrange(1, 12), random.choice(ERRORS))
    return StartFault(step, after_s=random.random() * 0.2)


async def _started(node: SimNode) -> None:
    for _ in range(int(START_S / 0.05)):
        if node.is_up or node._life is None:
            return
        await asyncio.sleep(0.05)


async def failing_operation(trouble: "Trouble") -> None:
    """A file operation of a running broker fails, once or for a while. A broker with offline partitions restarts."""
    node = trouble.random.choice(trouble.nodes)
    if not node.is_up:
        return
    operation, error = trouble.random.choice(FAILING), trouble.random.choice(ERRORS)
    nth, sticks = trouble.random.randrange(1, 30), trouble.random.random() < 0.3
    trouble.note("disk fails", node.node_id, operation, errno.errorcode[error], nth, sticks)
    node.files.fail(operation, nth=nth, error=error, sticks=sticks)
    await asyncio.sleep(trouble.random.random() * 2)
    node.files.heal()
    await repair(trouble, node)


async def failing_append(trouble: "Trouble") -> None:
    """The same for the files that are appended to all the time, so that every kind of record meets it."""
    node = trouble.random.choice(trouble.nodes)
    if not node.is_up:
        return
    path = trouble.random.choice(["*.log", "*.txnindex", "*.log"])
    trouble.note("append fails", node.node_id, path)
    for _ in range(6):
        node.files.fail("append", path=path, nth=trouble.random.randrange(1, 3), error=errno.ENOSPC)
        await asyncio.sleep(trouble.random.random() * 0.4)
    node.files.heal()
    await repair(trouble, node)


async def failing_rename(trouble: "Trouble") -> None:
    """Directories of partitions cannot be renamed for a while, which the deletion of a topic begins with."""
    nodes = trouble.random.sample(trouble.nodes, trouble.random.choice([1, 1, 3]))
    trouble.note("rename fails", *(node.node_id for node in nodes))
    for node in nodes:
        node.files.fail("rename", path=f"*/{NAME}-?", error=errno.EIO, sticks=trouble.random.random() < 0.5)
    await asyncio.sleep(trouble.random.random() * 3)
    for node in nodes:
        node.files.heal()
        await repair(trouble, node)


async def repair(trouble: "Trouble", node: SimNode) -> None:
    """What an operator does with a broker whose partitions are offline after an error of its disk."""
    if node.broker is None or not node.broker.partitions.has_failed:
        return
    trouble.note("repaired", node.node_id)
    if trouble.random.random() < 0.5:
        await node.stop()
    else:
        node.kill()
    if node._life is None:
        node.start()


async def start_on_full_disk(trouble: "Trouble") -> None:
    """A broker restarts on a full disk. The others are well, so every partition takes records within a while."""
    await asyncio.sleep(3.0)  # there are some records by now
    if not await trouble.all_well():
        return
    node = trouble.random.choice(trouble.nodes)
    node.kill()
    await asyncio.sleep(trouble.random.choice([0.05, 3.0]))
    node.files.capacity_bytes = node.files.used_bytes() + trouble.random.choice([100, 150, 200])
    trouble.note("full", node.node_id)
    node.start()
    await _started(node)
    await asyncio.sleep(SERVED_S / 2)
    acked = [max(ledger.acked, default=-1) for ledger in trouble.world.ledgers]
    await asyncio.sleep(SERVED_S / 2)
    for index, ledger in enumerate(trouble.world.ledgers):
        if max(ledger.acked, default=-1) == acked[index] and trouble.world.broken is None:
            trouble.world.broken = NotServed(
                f"{TOPIC}-{index} takes no records while the disk of broker {node.node_id} is full"
            )
    node.files.capacity_bytes = None


async def replace_disk(trouble: "Trouble") -> None:
    """One broker gets an empty disk while all others hold everything."""
    node = trouble.random.choice(trouble.nodes)
    if not node.is_up or not trouble.nobody_else_has_lost(node):
        return
    trouble.note("replaced", node.node_id)
    node.lose_power()
    await asyncio.sleep(trouble.random.choice([0.05, 3.0]))
    node.replace_disk()
    node.start()
    await trouble.all_well(wait_s=START_S)


async def restore_older_disk(trouble: "Trouble") -> None:
    """One broker is killed and gets its disk of an earlier clean stop; then the others, which hold all, are killed."""
    if not await trouble.all_well():
        return
    node, *others = trouble.random.sample(trouble.nodes, len(trouble.nodes))
    await node.stop()
    image = copied(node.files)
    node.start()
    await _started(node)
    await asyncio.sleep(trouble.random.choice([1.0, 4.0]))
    trouble.note("older disk", node.node_id)
    node.kill()
    await _put_in(trouble, node, image, others)


async def restore_disk_of_this_run(trouble: "Trouble") -> None:
    """One broker stops cleanly and gets its disk as it was while it ran; then the others are killed."""
    if not await trouble.all_well():
        return
    node, *others = trouble.random.sample(trouble.nodes, len(trouble.nodes))
    image = copied(node.files)
    await asyncio.sleep(trouble.random.choice([1.0, 4.0]))
    await node.stop()
    if node._life is not None:
        return  # it was killed while it stopped
    trouble.note("disk of this run", node.node_id)
    await _put_in(trouble, node, image, others)


async def return_former_disk(trouble: "Trouble") -> None:
    """One broker gets an empty disk and catches up; then it gets its former disk, which it had left cleanly."""
    if not await trouble.all_well():
        return
    node, *others = trouble.random.sample(trouble.nodes, len(trouble.nodes))
    await node.stop()
    former = copied(node.files)
    node.replace_disk()
    node.start()
    if not await trouble.all_well(wait_s=START_S):
        return
    await asyncio.sleep(trouble.random.choice([1.0, 4.0]))
    trouble.note("former disk", node.node_id)
    if trouble.random.random() < 0.5:
        await node.stop()
    else:
        node.kill()
    await _put_in(trouble, node, former, others)


async def _put_in(trouble: "Trouble", node: SimNode, disk: SimFiles, others: list[SimNode]) -> None:
    """A broker that is down starts with this disk; then the others are killed, which have all records."""
    node.restore_disk(disk)
    node.start()
    await asyncio.sleep(trouble.random.choice([0.0, 0.3, 1.0]))
    for other in others:
        other.kill()
    await asyncio.sleep(trouble.random.choice([0.3, 4.0]))
    for other in others:
        other.start()
    await trouble.all_well(wait_s=START_S)


async def replace_last_disk(trouble: "Trouble") -> None:
    await _lose_last_logs(trouble, "last disk", SimNode.replace_disk)


async def lose_last_directories(trouble: "Trouble") -> None:
    await _lose_last_logs(trouble, "last directories", _remove_directories)


def _remove_directories(node: SimNode) -> None:
    for name in node.files.list("/data"):
        if name.startswith(f"{TOPIC}-"):
            node.files.remove_tree(f"/data/{name}")
    node.files.sync_dir("/data")


async def _lose_last_logs(trouble: "Trouble", what: str, lose: Callable[[SimNode], None]) -> None:
    """The last replica in sync loses its logs; then the others are back, which hold all that clients know.

    Clients reach only them, so that nothing is acknowledged that the lost disk alone had. The partition has no leader
    then, and an operator asks for an unclean election.
    """
    if not await trouble.all_well():
        return
    last, *others = trouble.random.sample(trouble.nodes, len(trouble.nodes))
    trouble.note(what, last.node_id)
    for client in CLIENTS:
        trouble.network.cut(client, last.node_id)
        trouble.network.cut(last.node_id, client)
    await asyncio.sleep(0.5)  # what was on its way is there
    for node in others:
        node.kill()
    await asyncio.sleep(5.0)
    last.lose_power()
    lose(last)
    last.start()
    await asyncio.sleep(4.0)
    for node in others:
        node.start()
    await asyncio.sleep(3.0)
    trouble.network.heal()
    await _elect_uncleanly(trouble)


async def _elect_uncleanly(trouble: "Trouble") -> None:
    for _ in range(20):
        await asyncio.sleep(0.5)
        node = trouble.random.choice(trouble.nodes)
        if node.broker is None:
            continue
        topic = node.broker.image.topics[TOPIC]
        leaderless = [index for index, state in enumerate(topic.partitions) if state.leader < 0]
        if not leaderless:
            continue
        trouble.note("unclean", node.node_id, leaderless)
        work = node.broker.controller.states.elect_leaders({TOPIC: leaderless}, unclean=True)
        await asyncio.gather(node.run(work), return_exceptions=True)
