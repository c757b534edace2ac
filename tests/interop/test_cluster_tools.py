"""Apache Kafka's tools for clusters, against three brokers of ours: moves with a throttle, elections, brokers."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalCluster
from tests.interop.apache_kafka import ToolFailed, tool

PATIENCE_S = 60.0
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
CONFIGS = "kafka.admin.ConfigCommand"
RATE = "10000000"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, memory=False) as running:
        yield running


def replicas(admin: AdminClient, topic: str) -> list[int]:
    return list(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[0].replicas)


def test_a_partition_is_moved_by_kafka_reassign_partitions_with_a_throttle(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("moved", 1, replica_assignment=[[1, 2]])])["moved"].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(100):
        producer.produce("moved", bytes(1000))
    assert producer.flush(PATIENCE_S) == 0
    plan = tmp_path / "plan.json"
    wanted = {"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [3, 2]}]}
    plan.write_text(json.dumps(wanted))
    common = ("--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan))
    begun = tool(REASSIGN, *common, "--execute", "--throttle", RATE)
    assert "Successfully started partition reassignment" in begun.text
    deadline = time.monotonic() + PATIENCE_S
    while replicas(admin, "moved") != [3, 2]:
        assert time.monotonic() < deadline, "the move ends"
        time.sleep(0.1)
    verified = tool(REASSIGN, *common, "--verify")
    assert "Reassignment of partition moved-0 is completed" in verified.text
    assert "Clearing broker-level throttles" in verified.text
    words = ("--bootstrap-server", cluster.bootstrap, "--entity-type", "brokers", "--entity-name", "3", "--describe")
    assert RATE not in tool(CONFIGS, *words).text


def test_leadership_is_given_back_by_kafka_leader_election(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("led", 1, replica_assignment=[[2, 1, 3]])])["led"].result(PATIENCE_S)
    cluster.stop(2)
    cluster.restart(2)
    deadline = time.monotonic() + PATIENCE_S
    while len(admin.list_topics("led", timeout=PATIENCE_S).topics["led"].partitions[0].isrs) < 3:
        assert time.monotonic() < deadline, "it is in sync again"
        time.sleep(0.1)
    words = (
        "--bootstrap-server",
        cluster.bootstrap,
        "--election-type",
        "preferred",
        "--topic",
        "led",
        "--partition",
        "0",
    )
    assert "Successfully completed leader election" in tool(ELECT, *words).text
    assert cluster.leader("led") == 2


def test_kafka_cluster_tells_the_id_and_is_told_which_brokers_cannot_be_forgotten(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    told = tool(CLUSTER, "cluster-id", "--bootstrap-server", cluster.bootstrap).text
    assert admin.list_topics(timeout=PATIENCE_S).cluster_id in told
    with pytest.raises(ToolFailed, match="BrokerIdNotRegisteredException: no broker has the id 9"):
        tool(CLUSTER, "unregister", "--bootstrap-server", cluster.bootstrap, "--id", "9")
    with pytest.raises(ToolFailed, match="broker 3 runs; stop it first"):
        tool(CLUSTER, "unregister", "--bootstrap-server", cluster.bootstrap, "--id", "3")
