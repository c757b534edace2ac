"""Three brokers with wires that are cut, disks that fill up and files that fail; readers in racks; leaders in place."""

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.broker.replication.replica_fetcher import BULK_BYTES_MAX
from headrace.cli.cluster.reassign import FOLLOWER_LIST, FOLLOWER_RATE, LEADER_LIST, LEADER_RATE
from headrace.client.sync.configs import ResourceType, alter
from headrace.client.sync.reassignments import move, moving
from headrace.client.sync.transport import Connection
from headrace.model.ids import TopicPartition as Place
from headrace.testing import LocalBroker, LocalCluster
from headrace.testing.local.cluster import METADATA
from tests.integration.fenced import UNFENCED, acknowledges
from tests.integration.raw import RawConnection
from tests.integration.test_local_cluster import PATIENCE_S, Sender, create, everything, wait_for_isr, wait_for_leader
from tests.integration.told import leader_told_by
from tests.patience import until

DISK_BYTES = 96 * 1024 * 1024
MOVED_BYTES, RECORD_BYTES, BYTES_PER_S = 8 * 1024 * 1024, 500_000, 3_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    settings = {
        "broker.session.timeout.ms": "6000",  # only who is cut off shall lose it, not who waits for a busy machine
        "replica.lag.time.max.ms": "1000",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "leader.imbalance.check.interval.seconds": "1",
    }
    racks = {1: "a", 2: "b", 3: "b"}
    with LocalCluster(3, memory=False, settings=settings, racks=racks, links=True) as running:
        yield running


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until(condition, what, PATIENCE_S)


def is_taken_by(broker: LocalBroker, topic: str) -> bool:
    """Whether this very broker acknowledges a record to all replicas, asked by a client that knows no other."""
    try:
        with RawConnection(broker.port) as client:
            client.send_produce(topic, UNFENCED, timeout_ms=1000)
            return acknowledges(client, topic)
    except ConnectionError:
        return False


def test_d9_a_leader_that_is_cut_off_is_replaced_and_fenced(cluster: LocalCluster) -> None:
    create(cluster, "cut")
    sender = Sender(cluster, "cut")
    sender.send(10)
    leader = wait_for_leader(cluster, "cut")
    for other in (METADATA, *(one for one in cluster.brokers if one != leader)):
        cluster.partition(leader, other)
    assert not is_taken_by(cluster.brokers[leader], "cut"), "nobody else has it, and nobody is out of sync yet"
    next_one = cluster.brokers[leader % 3 + 1]
    wait_until(lambda: leader_told_by("127.0.0.1", next_one.port, "cut") not in (leader, -1), "somebody else leads")
    assert not is_taken_by(cluster.brokers[leader], "cut"), "two would acknowledge"
    sender.send(10)
    assert not is_taken_by(cluster.brokers[leader], "cut")
    cluster.heal()
    sender.send(10)
    wait_for_isr(cluster, "cut", 3)
    assert everything(cluster, "cut", 30) == sender.acked


@pytest.mark.parametrize("reaches_brokers", [True, False])
def test_a_broker_that_is_left_out_hangs_up_so_that_clients_ask_others(
    cluster: LocalCluster, reaches_brokers: bool
) -> None:
    alone, topic = 2, f"left-out-{reaches_brokers}"
    create(cluster, topic)
    with RawConnection(cluster.brokers[alone].port) as client:
        for other in (METADATA,) if reaches_brokers else (METADATA, 1, 3):
            cluster.partition(alone, other)
        assert client.is_closed_by_peer()
    cluster.heal()
    wait_for_isr(cluster, topic, 3)


def test_d9_a_broker_that_the_store_does_not_hear_is_replaced(cluster: LocalCluster) -> None:
    create(cluster, "unheard")
    sender = Sender(cluster, "unheard")
    sender.send(10)
    cluster.partition(wait_for_leader(cluster, "unheard"), METADATA, one_way=True)
    sender.send(10)
    cluster.heal()
    wait_for_isr(cluster, "unheard", 3)
    assert everything(cluster, "unheard", 20) == sender.acked


def test_a_broker_whose_files_fail_leaves_leading_to_others(cluster: LocalCluster) -> None:
    create(cluster, "failing")
    sender = Sender(cluster, "failing")
    sender.send(20)
    leader = wait_for_leader(cluster, "failing")
    limit = resource.prlimit(cluster.brokers[leader].pid, resource.RLIMIT_FSIZE, (1024, resource.RLIM_INFINITY))
    sender.send(20)
    wait_for_leader(cluster, "failing", leader.__ne__)
    resource.prlimit(cluster.brokers[leader].pid, resource.RLIMIT_FSIZE, limit)
    cluster.kill(leader)
    cluster.restart(leader)
    wait_for_isr(cluster, "failing", 3)
    assert everything(cluster, "failing", 40) == sender.acked


def test_kip_392_a_consumer_reads_in_its_own_rack(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("near", 1, replica_assignment=[[1, 2]])])["near"].result(PATIENCE_S)
    sender = Sender(cluster, "near")
    sender.send(20)
    wait_for_isr(cluster, "near", 2)
    read_from: set[int] = set()

    def statistics(text: str) -> None:
        read_from.add(json.loads(text)["topics"]["near"]["partitions"]["0"]["broker"])

    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "near",
            "client.rack": "b",
            "statistics.interval.ms": 50,
            "stats_cb": statistics,
        }
    )
    consumer.assign([TopicPartition("near", 0, 0)])
    seen: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while (len(seen) < 20 or 2 not in read_from) and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            seen.append((message.value() or b"").decode())
    sender.send(5)
    while len(seen) < 25 and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            seen.append((message.value() or b"").decode())
    consumer.close()
    assert seen == sender.acked
    assert 2 in read_from, "the replica in the consumer's rack, although broker 1 leads"


def test_leadership_goes_back_to_the_first_replica_by_itself(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("home", 1, replica_assignment=[[3, 1, 2]])])["home"].result(PATIENCE_S)
    wait_for_leader(cluster, "home", (3).__eq__)
    cluster.stop(3)
    wait_for_leader(cluster, "home", (3).__ne__)
    cluster.restart(3)
    wait_for_leader(cluster, "home", (3).__eq__)


@pytest.fixture
def small_disks() -> Iterator[LocalCluster]:
    try:
        settings = {"replica.lag.time.max.ms": "1000", "leader.imbalance.check.interval.seconds": "1"}
        with LocalCluster(3, disk_bytes=DISK_BYTES, settings=settings) as running:
            yield running
    except PermissionError as error:
        pytest.skip(str(error))


def test_d7_a_broker_without_room_leaves_leading_to_others_until_it_has_some(small_disks: LocalCluster) -> None:
    create(small_disks, "full")
    sender = Sender(small_disks, "full")
    sender.send(10)
    leader = wait_for_leader(small_disks, "full")
    small_disks.disk_full(leader)
    wait_for_leader(small_disks, "full", leader.__ne__)
    sender.send(10)
    small_disks.disk_freed(leader)
    wait_for_isr(small_disks, "full", 3)
    sender.send(10)
    assert everything(small_disks, "full", 30) == sender.acked


def test_d7_broker_restarted_on_a_full_disk_does_not_lead(small_disks: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": small_disks.bootstrap})
    admin.create_topics([NewTopic("returns", 1, replica_assignment=[[3, 1, 2]])])["returns"].result(PATIENCE_S)
    sender = Sender(small_disks, "returns")
    sender.send(10)
    wait_for_leader(small_disks, "returns", (3).__eq__)
    small_disks.kill(3)
    small_disks.disk_full(3)
    wait_for_leader(small_disks, "returns", (3).__ne__)
    sender.send(10)
    small_disks.restart(3)
    admin.create_topics([NewTopic("later", 1, replica_assignment=[[3, 1, 2]])])["later"].result(PATIENCE_S)
    wait_for_leader(small_disks, "later", (3).__ne__)
    with suppress(KafkaException):  # the preferred leader is not available
        admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("returns", 0)]).result(PATIENCE_S)
    sender.send(100)
    assert wait_for_leader(small_disks, "returns") != 3
    lines = small_disks.brokers[3].output().splitlines()
    assert sum("returns-0 cannot be copied" in line for line in lines) <= 1, "one line per state change"
    small_disks.disk_freed(3)
    wait_for_isr(small_disks, "returns", 3)
    wait_for_leader(small_disks, "returns", (3).__eq__)
    assert everything(small_disks, "returns", 120) == sender.acked


def test_d7_only_replica_restarted_on_a_full_disk_leads_and_is_read(small_disks: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": small_disks.bootstrap})
    admin.create_topics([NewTopic("only", 1, replica_assignment=[[3]])])["only"].result(PATIENCE_S)
    sender = Sender(small_disks, "only")
    sender.send(10)
    small_disks.stop(3)
    small_disks.disk_full(3)
    small_disks.restart(3)
    wait_for_leader(small_disks, "only", (3).__eq__)
    assert everything(small_disks, "only", 10) == sender.acked
    until(lambda: low_watermark_after_deletion(admin, "only", 5) == 5, "records are deleted", PATIENCE_S)
    small_disks.disk_freed(3)
    sender.send(10)


def low_watermark_after_deletion(admin: AdminClient, topic: str, offset: int) -> int | None:
    """None after the retriable KAFKA_STORAGE_ERROR: another file took the last bytes of the disk meanwhile."""
    up_to = TopicPartition(topic, 0, offset)
    try:
        low_watermark: int = admin.delete_records([up_to])[up_to].result(PATIENCE_S).low_watermark
    except KafkaException as error:
        if error.args[0].code() != KafkaError.KAFKA_STORAGE_ERROR:
            raise
        return None
    return low_watermark


def test_d7_partition_is_opened_without_a_restart_when_the_disk_is_freed(small_disks: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": small_disks.bootstrap})
    admin.create_topics([NewTopic("waits", 1, replica_assignment=[[3]])])["waits"].result(PATIENCE_S)
    sender = Sender(small_disks, "waits", padding=5000)  # more than the index interval
    sender.send(10)
    small_disks.stop(3)  # after a kill, recovery would free the preallocated tail of the log
    for index in Path(small_disks.brokers[3].data_dir).glob("**/waits-0/*index"):
        index.unlink()  # the start builds it again, and finds no space
    small_disks.disk_full(3)
    small_disks.restart(3)
    wait_for_leader(small_disks, "waits", (3).__eq__)
    assert "waits-0 is offline until there is disk space" in small_disks.brokers[3].output()
    small_disks.disk_freed(3)
    sender.send(10)
    assert everything(small_disks, "waits", 20) == sender.acked


def test_a_move_is_no_faster_than_its_throttle(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("slow", 1, replica_assignment=[[1]])])["slow"].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for _ in range(MOVED_BYTES // RECORD_BYTES):
        producer.produce("slow", os.urandom(RECORD_BYTES))
    assert producer.flush(PATIENCE_S) == 0
    rates = dict.fromkeys((LEADER_RATE, FOLLOWER_RATE), str(BYTES_PER_S))
    with Connection("127.0.0.1", cluster.brokers[2].port, PATIENCE_S) as connection:
        for broker in ("1", "2"):
            assert alter(connection, ResourceType.BROKER, broker, rates, ()) is None
        lists = {LEADER_LIST: "0:1", FOLLOWER_LIST: "0:2"}
        assert alter(connection, ResourceType.TOPIC, "slow", lists, ()) is None
        began = time.monotonic()
        move(connection, {Place("slow", 0): (2,)})
        wait_until(lambda: not moving(connection), "the move ends")
        lasted = time.monotonic() - began
        for broker in ("1", "2"):
            assert alter(connection, ResourceType.BROKER, broker, {}, rates) is None
    # The last piece is not waited for; however slow the machine is, it is not faster.
    assert lasted >= (MOVED_BYTES - BULK_BYTES_MAX) / BYTES_PER_S
    wait_for_leader(cluster, "slow", (2).__eq__)
