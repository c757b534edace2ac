"""D5: one replica's files are damaged. It is noticed, never served, and taken anew from the others."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.records.batch import walk
from headrace.testing.local.cluster import LocalCluster
from tests.integration.test_damage import flip_bit
from tests.integration.test_local_cluster import Sender, everything, wait_for_isr
from tests.patience import until

PATIENCE_S = 60.0
RECORDS = 60
RECORD_BYTES = 50_000  # twenty to a segment
# The scrubber looks at what nobody reads, here without a day's rest in between.
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "log.scrub.interval.ms": "200",
    "log.scrub.bytes.per.second": str(2**30),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[LocalCluster]:
    with LocalCluster(3, data_dir=home, settings=SETTINGS) as running:
        yield running


def batches(folder: Path) -> bytes:
    """The batches of a log, without regard to where its segments begin."""
    try:
        return b"".join(file.read_bytes() for file in sorted(folder.glob("*.log")))
    except FileNotFoundError:  # one was removed meanwhile
        return b""


def wait_for_repair(home: Path, cluster: LocalCluster, topic: str, node_id: int) -> None:
    other = node_id % 3 + 1
    held = [home / f"broker-{one}" / f"{topic}-0" for one in (node_id, other)]
    until(lambda: batches(held[0]) == batches(held[1]), "the damaged log is as the other", PATIENCE_S)
    wait_for_isr(cluster, topic, 3)


def written(cluster: LocalCluster, topic: str) -> Sender:
    """A topic on all three brokers with several segments."""
    wanted = NewTopic(topic, 1, 3, config={"min.insync.replicas": "2", "segment.bytes": "1048576"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # lives as long as its request
    admin.create_topics([wanted])[topic].result(PATIENCE_S)
    sender = Sender(cluster, topic, padding=RECORD_BYTES)
    sender.send(RECORDS)
    wait_for_isr(cluster, topic, 3)
    return sender


def flip_in_the_middle(folder: Path) -> None:
    log = sorted(folder.glob("*.log"))[0]
    flip_bit(log, log.stat().st_size // 2)


def flip_a_base_offset(folder: Path) -> None:
    log = sorted(folder.glob("*.log"))[0]
    positions = [position for position, _ in walk(memoryview(log.read_bytes()))]
    flip_bit(log, positions[3] + 7)


def cut_a_sealed_segment(folder: Path) -> None:
    log = sorted(folder.glob("*.log"))[1]
    os.truncate(log, log.stat().st_size // 2)


def cut_the_last_segment(folder: Path) -> None:
    log = sorted(folder.glob("*.log"))[-1]
    os.truncate(log, log.stat().st_size // 3)


def remove_all_segments(folder: Path) -> None:
    for file in folder.glob("0*"):
        file.unlink()


def remove_the_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def flip_in_every_other_file(folder: Path) -> None:
    for file in folder.iterdir():
        if file.suffix != ".log" and file.stat().st_size:
            flip_bit(file, file.stat().st_size // 2)


def flip_in_place(log: Path, position: int) -> None:
    """The broker has the file open."""
    with log.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


DAMAGES = [
    flip_in_the_middle,
    flip_a_base_offset,
    cut_a_sealed_segment,
    cut_the_last_segment,
    remove_all_segments,
    remove_the_folder,
    flip_in_every_other_file,
]


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_d5_a_damaged_replica_is_copied_anew(
    home: Path, cluster: LocalCluster, damage: Callable[[Path], None], role: str
) -> None:
    topic = f"{damage.__name__}-{role}"
    sender = written(cluster, topic)
    leader = cluster.leader(topic)
    node_id = leader if role == "leader" else leader % 3 + 1
    folder = home / f"broker-{node_id}" / f"{topic}-0"
    cluster.stop(node_id)  # a clean end: from then on nobody expects a torn tail
    damage(folder)
    cluster.restart(node_id)
    # Every other file a broker can make anew by itself; without a folder it begins like any new replica, unless the
    # others still count on it.
    if damage not in (flip_in_every_other_file, remove_the_folder):
        until(lambda: "Re-replicating" in cluster.brokers[node_id].output(), "the damage is noticed", PATIENCE_S)
    assert everything(cluster, topic, RECORDS) == sender.acked, "whoever leads: no damage is served"
    sender.send(5)
    wait_for_repair(home, cluster, topic, node_id)


def test_d5_damage_that_a_reader_meets_is_repaired_while_everybody_runs(home: Path, cluster: LocalCluster) -> None:
    topic = "rotten"
    sender = written(cluster, topic)
    for node_id in cluster.brokers:  # what a process wrote itself it does not check again
        cluster.stop(node_id)
        cluster.restart(node_id)
        wait_for_isr(cluster, topic, 3)
    leader = cluster.leader(topic)
    folder = home / f"broker-{leader}" / f"{topic}-0"
    log = sorted(folder.glob("*.log"))[0]
    flip_in_place(log, log.stat().st_size // 2)
    assert everything(cluster, topic, RECORDS) == sender.acked
    wait_for_repair(home, cluster, topic, leader)


@pytest.mark.parametrize(("field", "byte"), [("offset", 6), ("epoch", 13)])
def test_d5_flipped_header_bit_of_a_leader_does_not_spread(
    home: Path, cluster: LocalCluster, field: str, byte: int
) -> None:
    """In the segment that the running leader wrote last, which the scrubber does not read."""
    topic = f"header-{field}"
    sender = written(cluster, topic)
    leader = cluster.leader(topic)
    follower = leader % 3 + 1
    cluster.kill(follower)
    wait_for_isr(cluster, topic, 2)
    shutil.rmtree(home / f"broker-{follower}" / f"{topic}-0")
    log = sorted((home / f"broker-{leader}" / f"{topic}-0").glob("*.log"))[-1]
    positions = [position for position, _ in walk(memoryview(log.read_bytes()))]
    flip_in_place(log, positions[3] + byte)
    cluster.restart(follower)
    wait_for_repair(home, cluster, topic, leader)
    wait_for_repair(home, cluster, topic, follower)
    assert cluster.leader(topic) != leader
    assert everything(cluster, topic, RECORDS) == sender.acked


@pytest.mark.parametrize("loss", [remove_the_folder, remove_all_segments])
def test_d5_a_replica_that_lost_its_log_waits_for_those_who_have_theirs(
    home: Path, cluster: LocalCluster, loss: Callable[[Path], None]
) -> None:
    topic = f"alone-{loss.__name__}"
    sender = written(cluster, topic)
    for node_id in cluster.brokers:
        cluster.kill(node_id)
    loss(home / "broker-1" / f"{topic}-0")
    cluster.restart(1)  # alone: it was in sync, and must not lead
    until(lambda: cluster.leader(topic) == -1, "the others are known to be gone", PATIENCE_S)
    cluster.restart(2)
    cluster.restart(3)
    assert everything(cluster, topic, RECORDS) == sender.acked
    wait_for_repair(home, cluster, topic, 1)


@pytest.mark.parametrize("loss", [remove_the_folder, remove_all_segments])
def test_last_in_sync_replica_without_its_log_does_not_lead(
    home: Path, cluster: LocalCluster, loss: Callable[[Path], None]
) -> None:
    """The other replica is behind and not eligible. It must not truncate its log to an empty one."""
    topic = f"last-{loss.__name__}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = NewTopic(topic, 1, replica_assignment=[[1, 2]], config={"min.insync.replicas": "1"})
    admin.create_topics([wanted])[topic].result(PATIENCE_S)
    sender = Sender(cluster, topic, padding=RECORD_BYTES)
    sender.send(RECORDS)
    wait_for_isr(cluster, topic, 2)
    cluster.stop(2)
    wait_for_isr(cluster, topic, 1)
    sender.send(1)
    held = batches(home / "broker-2" / f"{topic}-0")
    cluster.kill(1)
    loss(home / "broker-1" / f"{topic}-0")
    cluster.restart(1)
    cluster.restart(2)
    until(lambda: cluster.leader(topic) == -1, "no replica is eligible", PATIENCE_S)
    place = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})  # of brokers that run
    elected = admin.elect_leaders(ElectionType.UNCLEAN, [place])
    assert elected.result(PATIENCE_S)[place] is None
    until(lambda: cluster.leader(topic) == 2, "the replica that has records leads", PATIENCE_S)
    wait_for_isr(cluster, topic, 2)
    assert batches(home / "broker-2" / f"{topic}-0") == held
