"""Apache Kafka's tools and clients on three brokers of ours: moves with a throttle, elections, a rolling restart."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import LocalCluster
from tests.interop.apache_kafka import ToolFailed, tool
from tests.interop.verifiable import NOT_SENT, RECEIVED, SENT, consumer, producer, values, wait_for_more
from tests.patience import awaited

PATIENCE_S = 60.0
TOPICS = "org.apache.kafka.tools.TopicCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
CONFIGS = "kafka.admin.ConfigCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
RATE = "10000000"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, memory=False) as running:
        yield running


def replicas(admin: AdminClient, topic: str) -> list[int]:
    return list(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[0].replicas)


def wait_until_in_sync(admin: AdminClient, topic: str) -> None:
    def followers_missing() -> int:
        partitions = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions.values()
        return sum(len(one.replicas) - len(one.isrs) for one in partitions)

    awaited(followers_missing, lambda missing: missing == 0, f"all replicas of {topic} are in sync", PATIENCE_S)


def test_a_topic_lives_its_life_under_kafka_topics_with_replicas(cluster: LocalCluster) -> None:
    def topics(*words: str) -> str:
        return tool(TOPICS, "--bootstrap-server", cluster.bootstrap, *words).text

    topics("--create", "--topic", "three", "--partitions", "3", "--replication-factor", "3")
    described = topics("--describe", "--topic", "three")
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 3", described)
    rows = [set(replicas.split(",")) for replicas in re.findall(r"Replicas: ([\d,]+)", described)]
    assert rows == [{"1", "2", "3"}] * 3
    assert len(set(re.findall(r"Leader: (\d)", described))) == 3, "each broker leads one"
    with pytest.raises(ToolFailed, match="The target replication factor of 4 cannot be reached because only 3 broker"):
        topics("--create", "--topic", "four", "--replication-factor", "4")
    topics("--create", "--topic", "placed", "--replica-assignment", "2:1,3:2")
    placed = topics("--describe", "--topic", "placed")
    assert re.findall(r"Leader: (\d)\s+Replicas: ([\d,]+)", placed) == [("2", "2,1"), ("3", "3,2")]
    topics("--alter", "--topic", "three", "--partitions", "6")
    cluster.kill(1)
    behind = awaited(
        lambda: topics("--describe", "--topic", "three", "--under-replicated-partitions"),
        lambda told: told.count("Partition: ") == 6 and "Leader: 1" not in told,
        "all partitions are led by others, and lack a replica",
        PATIENCE_S,
    )
    assert not re.search(r"Isr: \S*1", behind)
    cluster.restart(1)
    wait_until_in_sync(AdminClient({"bootstrap.servers": cluster.bootstrap}), "three")
    assert topics("--describe", "--topic", "three", "--under-replicated-partitions").strip() == ""
    topics("--delete", "--topic", "three")
    assert {"three", "placed"} & set(topics("--list").split()) == {"placed"}


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
    awaited(lambda: replicas(admin, "moved"), [3, 2].__eq__, "the move ends", PATIENCE_S)
    verified = tool(REASSIGN, *common, "--verify")
    assert "Reassignment of partition moved-0 is completed" in verified.text
    assert "Clearing broker-level throttles" in verified.text
    words = ("--bootstrap-server", cluster.bootstrap, "--entity-type", "brokers", "--entity-name", "3", "--describe")
    assert RATE not in tool(CONFIGS, *words).text


def test_leadership_is_given_back_by_kafka_leader_election(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("led", 1, replica_assignment=[[2, 1, 3]])])["led"].result(PATIENCE_S)
    cluster.restart(2)
    wait_until_in_sync(admin, "led")
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
    # Any broker may be asked, also one that has not heard of the election yet.
    awaited(lambda: cluster.leader("led"), (2).__eq__, "broker 2 leads again", PATIENCE_S)


def test_kafka_cluster_tells_the_id_and_is_told_which_brokers_cannot_be_forgotten(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    told = tool(CLUSTER, "cluster-id", "--bootstrap-server", cluster.bootstrap).text
    assert admin.list_topics(timeout=PATIENCE_S).cluster_id in told
    with pytest.raises(ToolFailed, match="BrokerIdNotRegisteredException: no broker has the id 9"):
        tool(CLUSTER, "unregister", "--bootstrap-server", cluster.bootstrap, "--id", "9")
    with pytest.raises(ToolFailed, match="broker 3 runs; stop it first"):
        tool(CLUSTER, "unregister", "--bootstrap-server", cluster.bootstrap, "--id", "3")


def test_kafka_features_tells_the_levels_and_what_cannot_be_changed(cluster: LocalCluster) -> None:
    at = ("--bootstrap-server", cluster.bootstrap)
    told = tool(FEATURES, *at, "describe").text
    assert "group.version" in told
    assert "FinalizedVersionLevel: 2" in told
    tool(FEATURES, *at, "upgrade", "--feature", "transaction.version=2")
    with pytest.raises(ToolFailed, match=r"group\.version is 1 in this release of headrace"):
        tool(FEATURES, *at, "downgrade", "--feature", "group.version=0")
    with pytest.raises(ToolFailed, match=r"no feature is called 'metadata\.version'"):
        tool(FEATURES, *at, "upgrade", "--metadata", "4.3")


def longest_pause_ms(events: list[dict[str, Any]]) -> int:
    times: dict[int, list[int]] = {}
    for one in events:
        if one["name"] == SENT:
            times.setdefault(one["partition"], []).append(one["timestamp"])
    return max(after - before for row in times.values() for before, after in pairwise(sorted(row)))


def test_a_rolling_restart_costs_java_clients_no_error_and_no_record(cluster: LocalCluster, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("rolled", 3, 3, config={"min.insync.replicas": "2"})])["rolled"].result(PATIENCE_S)
    with (
        consumer(cluster.bootstrap, "rolled", "rolling") as reader,
        producer(cluster.bootstrap, "rolled", tmp_path, a_second=500) as sender,
    ):
        wait_for_more(reader)
        for node in cluster.brokers:
            cluster.restart(node)
            wait_until_in_sync(admin, "rolled")
            wait_for_more(sender, SENT)
        assert not values(sender, NOT_SENT)
        sender.terminate()
        acked = values(sender, SENT)
        # The tool's shutdown hook closes the producer while its main thread may still be in send().
        failed = [one["message"] for one in sender.events if one["name"] == NOT_SENT]
        assert set(failed) <= {"Producer closed while send in progress"}
        assert len(acked) == len(set(acked))
        reader.wait_for(lambda: set(acked) <= set(values(reader, RECEIVED)))
        print(f"the longest time between two acks of a partition: {longest_pause_ms(sender.events)} ms")
