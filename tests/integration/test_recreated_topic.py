"""A topic is deleted and created again while the coordinator of a group does not run."""

from collections.abc import Iterator

import pytest

from headrace.client.librdkafka import make_admin
from headrace.testing import LocalCluster
from tests.patience import until

PATIENCE_S = 60
PARTITIONS = 4
SETTINGS = {"offsets.topic.num.partitions": "1", "broker.session.timeout.ms": "4000"}


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, settings=SETTINGS) as running:
        yield running


def create(bootstrap: str, *topics: str) -> None:
    from confluent_kafka.admin import NewTopic

    admin = make_admin(bootstrap)
    for outcome in admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in topics]).values():
        outcome.result(PATIENCE_S)


def delete(bootstrap: str, topic: str) -> None:
    admin = make_admin(bootstrap)
    admin.delete_topics([topic])[topic].result(PATIENCE_S)


def commit(bootstrap: str, topic: str, offset: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        wanted = [TopicPartition(topic, index, offset) for index in range(PARTITIONS)]
        rows = consumer.commit(offsets=wanted, asynchronous=False)
        assert [row.error for row in rows if row.error is not None] == []
    finally:
        consumer.close()


def committed(bootstrap: str, topic: str) -> set[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    try:
        wanted = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return {found.offset for found in consumer.committed(wanted, timeout=PATIENCE_S)}
    finally:
        consumer.close()


@pytest.mark.timeout(180)
def test_offsets_of_recreated_topic_are_absent_after_coordinator_failover(cluster: LocalCluster) -> None:
    from confluent_kafka import OFFSET_INVALID

    create(cluster.bootstrap, "recreated", "kept")
    commit(cluster.bootstrap, "recreated", 7)
    commit(cluster.bootstrap, "kept", 5)
    coordinator = cluster.leader("__consumer_offsets")
    others = ",".join(broker.bootstrap for number, broker in cluster.brokers.items() if number != coordinator)

    cluster.pause(coordinator)
    try:
        # librdkafka sends DeleteTopics to the controller, and waits for its response for as long as the test does.
        until(lambda: controller(others) != coordinator, "another broker is the controller", PATIENCE_S)
        delete(others, "recreated")
        create(others, "recreated")
        until(
            lambda: leader_of_offsets(others) not in (-1, coordinator), "another broker is the coordinator", PATIENCE_S
        )
        assert committed(others, "recreated") == {OFFSET_INVALID}
        assert committed(others, "kept") == {5}
        commit(others, "recreated", 1)
    finally:
        cluster.resume(coordinator)
    assert committed(cluster.bootstrap, "recreated") == {1}


def controller(bootstrap: str) -> int:
    return int(make_admin(bootstrap).list_topics(timeout=PATIENCE_S).controller_id)


def leader_of_offsets(bootstrap: str) -> int:
    topics = make_admin(bootstrap).list_topics("__consumer_offsets", timeout=PATIENCE_S).topics
    return int(topics["__consumer_offsets"].partitions[0].leader)
