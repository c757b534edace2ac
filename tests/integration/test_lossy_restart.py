"""D3: records that are acknowledged from memory, on replicas of which one loses its power: nobody misses anything."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.records.batch import walk
from headrace.storage.directory.checkpoint_files import BOOT, RECOVERY_POINTS
from headrace.testing import LocalCluster
from tests.integration.test_local_cluster import PATIENCE_S, Sender, everything, wait_for_isr
from tests.integration.told import Told, told_or_none
from tests.patience import awaited

TOPIC = "lossy"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(3, data_dir=tmp_path) as running:
        yield running


def lose_unsynced(data_dir: Path) -> int:
    """What a power cut does to the partition's log: only what was synced is left. Returns how many bytes went."""
    checkpoint = data_dir / RECOVERY_POINTS
    rows = [line.split() for line in checkpoint.read_text().splitlines()[2:]] if checkpoint.exists() else []
    synced = next((int(offset) for topic, _, offset in rows if topic == TOPIC), 0)
    (log,) = (data_dir / f"{TOPIC}-0").glob("*.log")
    data = log.read_bytes()
    kept = next((position for position, header in walk(data) if header.next_offset > synced), len(data))
    os.truncate(log, kept)
    (data_dir / BOOT).write_text("the machine has been switched off since")
    return len(data) - kept


def told_once(cluster: LocalCluster, broker: int, is_right: Callable[[Told], bool], what: str) -> Told:
    """What the broker says, once it is right. It may hang up for a moment when it is left out itself."""
    port = cluster.brokers[broker].port
    told = awaited(
        lambda: told_or_none("127.0.0.1", port, TOPIC),
        lambda one: one is not None and one.partitions and is_right(one),
        what,
        PATIENCE_S,
    )
    assert told is not None
    return told


@pytest.mark.parametrize("was_alone", [True, False])
def test_d3_a_replica_that_lost_its_power_leads_nobody_before_it_has_caught_up(
    cluster: LocalCluster, tmp_path: Path, was_alone: bool
) -> None:
    """`was_alone`: it had noticed that the others are gone, so that it was the last one in sync."""
    configs = {"flush.policy": "replicated", "min.insync.replicas": "2"}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[3, 1, 2]], config=configs)])[TOPIC].result(PATIENCE_S)
    sender = Sender(cluster, TOPIC)
    sender.send(50)
    for paused in (1, 2):
        cluster.pause(paused)
    if was_alone:
        told_once(cluster, 3, lambda one: one.partitions[0].isr == (3,), "it is alone")
    cluster.kill(3)
    assert lose_unsynced(tmp_path / "broker-3") > 0, "otherwise nothing was at stake"
    cluster.restart(3)
    alone = told_once(cluster, 3, lambda one: set(one.brokers) == {3}, "it is alone")
    assert alone.partitions[0].leader == -1, "better nobody than one that has lost what was acknowledged"

    for paused in (1, 2):
        cluster.resume(paused)
    told_once(cluster, 1, lambda one: one.partitions[0].leader in (1, 2), "one that has everything leads")
    for left in cluster.brokers:
        _others_follow(cluster, sender, left)
    assert everything(cluster, TOPIC, len(sender.acked)) == sender.acked


def _others_follow(cluster: LocalCluster, sender: Sender, left: int) -> None:
    """One leads while the others are paused; then they have what it has. Also the one that had lost something."""
    wait_for_isr(cluster, TOPIC, 3)
    sender.send(5)
    others = [one for one in cluster.brokers if one != left]
    for other in others:
        cluster.pause(other)
    told_once(cluster, left, lambda one: one.partitions[0].leader == left, f"{left} leads")
    for other in others:
        cluster.resume(other)
    sender.send(5)
    wait_for_isr(cluster, TOPIC, 3)
    assert everything(cluster, TOPIC, len(sender.acked)) == sender.acked
