"""Three brokers as processes, real clients: what a cluster promises while brokers are killed, paused and stopped."""

import importlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.connection import Connection
from headrace.client.moving import move, moving
from headrace.model.ids import TopicPartition as Place
from headrace.testing.local_cluster import LocalCluster
from tests.patience import awaited, until

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

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
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
        self.acked: list[str] = []

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            outcomes: list[object] = []
            value = f"{self._topic} {len(self.acked)}"
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

    awaited(in_sync, lambda found: set(found) <= {size}, f"{topic} has {size} replicas in sync", PATIENCE_S)


def test_d1_a_killed_leader_is_replaced_and_nothing_is_lost(cluster: LocalCluster) -> None:
    create(cluster, "killed")
    sender = Sender(cluster, "killed")
    sender.send(20)
    leader = cluster.leader("killed")
    cluster.kill(leader)
    sender.send(20)
    assert cluster.leader("killed") not in (leader, -1)
    cluster.restart(leader)
    wait_for_isr(cluster, "killed", 3)
    assert everything(cluster, "killed", 40) == sender.acked


def test_d8_a_leader_that_was_paused_past_its_session_is_fenced(cluster: LocalCluster) -> None:
    create(cluster, "paused")
    sender = Sender(cluster, "paused")
    sender.send(10)
    leader = cluster.leader("paused")
    cluster.pause(leader)
    try:
        sender.send(10)  # acknowledged by the next leader: the paused one cannot
    finally:
        cluster.resume(leader)
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


def test_a_group_survives_its_coordinator(cluster: LocalCluster) -> None:
    create(cluster, "grouped")
    sender = Sender(cluster, "grouped")
    sender.send(10)
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "survivor", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "session.timeout.ms": 10_000})
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
            cluster.kill(cluster.leader("bank", 0))
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
        assert _replicas(admin, "moved") == (3, 2)
        cluster.stop(3)
        sender.send(5)
        assert cluster.leader("moved") == 2
        cluster.restart(3)
        wait_for_isr(cluster, "moved", 2)
        _elect_preferred(connection, "moved")
    assert cluster.leader("moved") == 3
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
