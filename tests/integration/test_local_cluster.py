"""Three brokers as processes, real clients: what a cluster promises while brokers are killed, paused and stopped."""

import importlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.sync.reassignments import move, moving
from headrace.client.sync.transport import Connection
from headrace.model.ids import TopicPartition as Place
from headrace.records.builder import NewRecord, build_batch
from headrace.testing.local.cluster import LocalCluster
from tests.integration.fenced import UNFENCED, acknowledges, read_by
from tests.integration.raw import RawConnection
from tests.integration.told import told_or_none
from tests.patience import awaited, until

LEADER_NOT_AVAILABLE, NOT_LEADER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS = 5, 6, 7, 19
PATIENCE_S = 60.0  # for a machine that does other things too; nothing here is timed


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, memory=False, settings={"offsets.topic.num.partitions": "6"}) as running:
        yield running


def create(cluster: LocalCluster, topic: str, partitions: int = 1) -> None:
    wanted = NewTopic(topic, partitions, 3, config={"min.insync.replicas": "2"})
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([wanted])[topic].result(PATIENCE_S)


class Sender:
    """Sends one record after the other, each until it is acknowledged."""

    def __init__(self, cluster: LocalCluster, topic: str, padding: int = 0) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "socket.timeout.ms": 3000,  # a paused broker says nothing, not even goodbye
                "message.timeout.ms": int(PATIENCE_S * 1000),
            }
        )
        self._topic = topic
        self._padding = "." * padding
        self.acked: list[str] = []

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            outcomes: list[object] = []
            value = f"{self._topic} {len(self.acked)}{self._padding}"
            self._producer.produce(self._topic, value, on_delivery=lambda error, _, to=outcomes: to.append(error))
            self._producer.flush(PATIENCE_S)
            assert outcomes == [None], outcomes
            self.acked.append(value)


def everything(cluster: LocalCluster, topic: str, count: int) -> list[str]:
    """What a reader of committed records finds in partition 0, from the beginning."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append((message.value() or b"").decode())
    consumer.close()
    return found


def wait_for_isr(cluster: LocalCluster, topic: str, size: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def in_sync() -> list[int]:
        partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions.values()
        return [len(one.isrs) for one in partitions]

    awaited(in_sync, lambda found: set(found) == {size}, f"{topic} has {size} replicas in sync", PATIENCE_S)


def wait_for_leader(cluster: LocalCluster, topic: str, is_wanted: Callable[[int], bool] = lambda _: True) -> int:
    """Who leads partition 0, once it is somebody wanted: that it has taken a record is not yet known to everybody."""
    return awaited(
        lambda: cluster.leader(topic),
        lambda leader: leader != -1 and is_wanted(leader),
        f"{topic} has a leader that is wanted",
        PATIENCE_S,
    )


def wait_until_watched(cluster: LocalCluster, watched: int, watcher: int) -> None:
    """Of two brokers: from now on the one would miss the other as soon as it is killed, however long its session is."""
    said = f"Connected to peer brokers: {watched}"
    until(lambda: said in cluster.brokers[watcher].output(), said, PATIENCE_S)


def test_d1_a_killed_leader_is_replaced_and_nothing_is_lost(cluster: LocalCluster) -> None:
    create(cluster, "killed")
    sender = Sender(cluster, "killed")
    sender.send(20)
    leader = wait_for_leader(cluster, "killed")
    cluster.kill(leader)
    sender.send(20)
    wait_for_leader(cluster, "killed", leader.__ne__)
    cluster.restart(leader)
    wait_for_isr(cluster, "killed", 3)
    assert everything(cluster, "killed", 40) == sender.acked


def test_d8_a_leader_that_was_paused_past_its_session_is_fenced(cluster: LocalCluster) -> None:
    """It is asked directly, by clients that do not know either, and finds their requests when it wakes up."""
    create(cluster, "paused")
    sender = Sender(cluster, "paused")
    sender.send(10)
    leader = wait_for_leader(cluster, "paused")
    port = cluster.brokers[leader].port
    with RawConnection(port) as writer, RawConnection(port) as reader:
        cluster.pause(leader)
        try:
            sender.send(10)  # acknowledged by the next leader: the paused one cannot
            writer.send_produce("paused", UNFENCED)
            for offset in (0, 10):
                reader.send_fetch("paused", offset)
        finally:
            cluster.resume(leader)
        assert not acknowledges(writer, "paused")
        stale = read_by(reader, "paused", 2)
    assert all(sender.acked[offset] == value for offset, value in stale.items()), stale
    sender.send(10)
    wait_for_isr(cluster, "paused", 3)
    assert everything(cluster, "paused", 30) == sender.acked


def test_a_rolling_restart_loses_and_repeats_nothing(cluster: LocalCluster) -> None:
    create(cluster, "rolling")
    sender = Sender(cluster, "rolling")
    for node_id in cluster.brokers:
        sender.send(5)
        cluster.stop(node_id)
        sender.send(5)
        cluster.restart(node_id)
        wait_for_isr(cluster, "rolling", 3)
    assert everything(cluster, "rolling", 30) == sender.acked


def test_rule_12_the_next_leader_remembers_producers_and_their_batches(cluster: LocalCluster) -> None:
    create(cluster, "remembered")
    wait_for_isr(cluster, "remembered", 3)
    assert [_repeated(cluster, number) for number in range(5)] == list(range(5))
    for _ in range(2):
        leader = wait_for_leader(cluster, "remembered")
        cluster.kill(leader)
        assert [_repeated(cluster, number) for number in range(5)] == list(range(5)), "each at its first offset"
        wait_for_leader(cluster, "remembered", leader.__ne__)
        cluster.restart(leader)
        wait_for_isr(cluster, "remembered", 3)
    assert _repeated(cluster, 5) == 5, "and the next one follows them"
    assert len(everything(cluster, "remembered", 6)) == 6


def _repeated(cluster: LocalCluster, sequence: int) -> int:
    """The offset of a batch that is sent until a leader takes it, or says that it has it."""
    record = NewRecord(0, None, b"value %d" % sequence)
    records = build_batch([record], producer_id=77, producer_epoch=0, base_sequence=sequence)

    def sent() -> tuple[int, int]:
        leader = cluster.leader("remembered")
        try:
            with RawConnection(cluster.brokers[leader].port) as connection:
                return connection.produce_error("remembered", records)
        except (OSError, KeyError):
            return NOT_LEADER, -1

    retriable = (NOT_LEADER, LEADER_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT)
    code, offset = awaited(sent, lambda found: found[0] not in retriable, "a leader answers", PATIENCE_S)
    assert code == 0, code
    return offset


def test_a_topic_is_created_while_one_of_its_replicas_is_away(cluster: LocalCluster) -> None:
    cluster.kill(3)
    # It may have been the controller: librdkafka, told so in its last moment, would call nobody else for minutes.
    others = cluster.brokers[1].port
    awaited(
        lambda: told_or_none("127.0.0.1", others, "early"),
        lambda told: told is not None and 3 not in told.brokers,
        "the others have noticed",
        PATIENCE_S,
    )
    create(cluster, "early", partitions=3)
    sender = Sender(cluster, "early")
    sender.send(10)
    cluster.restart(3)
    wait_for_isr(cluster, "early", 3)


def test_the_quorum_is_the_controller_and_those_who_could_be(cluster: LocalCluster) -> None:
    from kafka.admin import KafkaAdminClient

    def quorums() -> list[dict[str, Any]]:
        answers = []
        for broker in cluster.brokers.values():
            admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
            answers.append(admin.describe_metadata_quorum()["topics"][0]["partitions"][0])
            admin.close()
        return answers

    def agree(answers: list[dict[str, Any]]) -> bool:
        leaders = {(one["leader_id"], one["leader_epoch"]) for one in answers}
        voters = [[voter["replica_id"] for voter in one["current_voters"]] for one in answers]
        return len(leaders) == 1 and leaders.pop()[0] in cluster.brokers and voters == 3 * [[1, 2, 3]]

    awaited(quorums, agree, "all name the same controller, and everybody as a voter", PATIENCE_S)


def test_a_group_survives_its_coordinator(cluster: LocalCluster) -> None:
    create(cluster, "grouped")
    sender = Sender(cluster, "grouped")
    sender.send(10)
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "survivor", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "session.timeout.ms": 45_000})
    consumer.subscribe(["grouped"])
    first = _take(consumer, 10)
    consumer.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    coordinator = admin.describe_consumer_groups(["survivor"])["survivor"].result(PATIENCE_S).coordinator.id
    cluster.kill(coordinator)
    sender.send(10)
    second = _take(consumer, 10)
    consumer.commit(asynchronous=False)
    consumer.close()
    cluster.restart(coordinator)
    wait_for_isr(cluster, "grouped", 3)
    assert [*first, *second] == sender.acked


def _take(consumer: Consumer, count: int) -> list[str]:
    taken: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(taken) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            taken.append((message.value() or b"").decode())
    return taken


def test_transactions_reach_over_brokers_and_survive_their_loss(cluster: LocalCluster) -> None:
    create(cluster, "bank", partitions=6)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": "teller",
            "transaction.timeout.ms": 50_000,
            "message.timeout.ms": 45_000,
        }
    )
    producer.init_transactions(PATIENCE_S)
    for number in range(4):
        producer.begin_transaction()
        for partition in range(6):
            producer.produce("bank", f"{number}", partition=partition)
        if number == 1:
            cluster.kill(wait_for_leader(cluster, "bank"))
        if number == 2:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
        for node_id, broker in cluster.brokers.items():
            if not broker.running:
                cluster.restart(node_id)
    for partition in range(6):
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "auditor"})
        consumer.assign([TopicPartition("bank", partition, 0)])
        assert _take(consumer, 3) == ["0", "1", "3"], partition
        consumer.close()


def test_replicas_move_to_another_broker_and_leadership_back_to_the_first(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("moved", 1, replica_assignment=[[1, 2]])])["moved"].result(PATIENCE_S)
    sender = Sender(cluster, "moved")
    sender.send(20)
    with Connection("127.0.0.1", cluster.brokers[2].port, PATIENCE_S) as connection:
        move(connection, {Place("moved", 0): (3, 2)})
        sender.send(20)
        until(lambda: not moving(connection), "the move ends", PATIENCE_S)
        awaited(lambda: _replicas(admin, "moved"), (3, 2).__eq__, "the others know where it is", PATIENCE_S)
        cluster.stop(3)
        sender.send(5)
        wait_for_leader(cluster, "moved", (2).__eq__)
        cluster.restart(3)
        wait_for_isr(cluster, "moved", 2)
        _elect_preferred(connection, "moved")
    wait_for_leader(cluster, "moved", (3).__eq__)
    assert everything(cluster, "moved", 45) == sender.acked


def _elect_preferred(connection: Connection, topic: str) -> None:
    messages: Any = importlib.import_module("kio.schema.elect_leaders.v2.request")
    answers: Any = importlib.import_module("kio.schema.elect_leaders.v2.response")
    request = messages.ElectLeadersRequest(
        election_type=0,
        topic_partitions=(messages.TopicPartitions(topic=topic, partitions=(0,)),),
        timeout=timedelta(seconds=30),
    )
    answer = connection.call(request, answers.ElectLeadersResponse)
    assert answer.replica_election_results[0].partition_result[0].error_code == 0


def _replicas(admin: AdminClient, topic: str) -> tuple[int, ...]:
    return tuple(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[0].replicas)


def test_the_fixture_is_a_cluster_of_three(kafka_cluster: LocalCluster) -> None:
    create(kafka_cluster, "fixture", partitions=3)
    Sender(kafka_cluster, "fixture").send(3)
    wait_for_isr(kafka_cluster, "fixture", 3)
