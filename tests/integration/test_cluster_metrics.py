"""What the metrics of two brokers say while one of them is away, and when it is back."""

import re

import httpx
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.telemetry.prometheus import Interval, parse
from headrace.testing.local.cluster import LocalCluster
from tests.integration.test_local_cluster import PATIENCE_S, wait_for_leader, wait_until_watched
from tests.patience import awaited

WHERE = re.compile(r"metrics of the broker on (\S+)")


def figures(cluster: LocalCluster, broker: int) -> Interval:
    url = WHERE.findall(cluster.brokers[broker].output())[-1]
    return Interval({}, parse(httpx.get(url, timeout=PATIENCE_S).text), 1.0)


def wait_until(cluster: LocalCluster, broker: int, name: str, value: float) -> Interval:
    return awaited(
        lambda: figures(cluster, broker), lambda one: one.now(name) == value, f"{name} is {value}", PATIENCE_S
    )


def test_a_broker_that_leaves_and_returns_is_seen_in_its_leaders_figures():
    # Long sessions: a broker that is killed is missed by its neighbour, and nobody is missed who is merely slow.
    settings = {"metrics_addr": "127.0.0.1:0", "broker.session.timeout.ms": "60000"}
    with LocalCluster(2, settings=settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("t", 1, 2)])["t"].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("t", b"x")
        producer.flush()
        leader = wait_for_leader(cluster, "t")
        other = 3 - leader
        assert sum(figures(cluster, one).now("headrace_controller_active") for one in (1, 2)) == 1
        assert figures(cluster, leader).now("headrace_replica_fetched_bytes_total") > 0
        wait_until_watched(cluster, other, leader)
        before = wait_until(cluster, leader, "headrace_partitions_under_replicated", 0)
        cluster.kill(other)
        missing = wait_until(cluster, leader, "headrace_partitions_under_replicated", 1)
        shrunk = [one.now("headrace_isr_changes_total", change="shrink") for one in (before, missing)]
        assert shrunk[1] - shrunk[0] == 1
        assert missing.now("headrace_cluster_brokers") == 1
        cluster.restart(other)
        back = wait_until(cluster, leader, "headrace_partitions_under_replicated", 0)
        assert back.now("headrace_isr_changes_total", change="expand") >= 1
        assert wait_until(cluster, other, "headrace_partitions", 1).now("headrace_offline_partitions") == 0
