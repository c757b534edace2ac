"""`headrace cluster add|rebalance|remove`: replicas move under way, plans are shown first, losses are refused."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.integration.port_row import reserved_base
from tests.integration.test_cluster_cli import PATIENCE_S, headrace
from tests.patience import awaited


class Running(NamedTuple):
    folder: str
    bootstrap: str
    process: "subprocess.Popen[str]"

    def cli(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return headrace("cluster", *words, "--bootstrap", self.bootstrap)

    def loads(self) -> Counter[int]:
        """How many replicas each broker holds, of all topics."""
        topics = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=PATIENCE_S).topics.values()
        return Counter(one for topic in topics for row in topic.partitions.values() for one in row.replicas)

    def replicas(self, topic: str) -> list[tuple[int, ...]]:
        found = AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(topic, timeout=PATIENCE_S)
        partitions = found.topics[topic].partitions
        return [tuple(partitions[index].replicas) for index in sorted(partitions)]


@pytest.fixture(scope="module")
def base() -> Iterator[int]:
    with reserved_base(4) as port:
        yield port


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, base: int) -> Iterator[Running]:
    folder = str(tmp_path_factory.mktemp("moves") / "c")
    command = [sys.executable, "-m", "headrace.cli.main", "cluster", "up", "--dir", folder, "--listen-base", str(base)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]
    assert lines[3].startswith("bootstrap: "), lines
    running = Running(folder, f"127.0.0.1:{base + 1}", process)
    words = ("create", "moved", "--partitions", "6", "--replication-factor", "2", "--bootstrap", running.bootstrap)
    assert headrace("topics", *words).returncode == 0
    produce(running, 300)
    try:
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)


def produce(running: Running, count: int) -> None:
    producer = Producer({"bootstrap.servers": running.bootstrap, "enable.idempotence": True})
    failures: list[object] = []
    for number in range(count):
        producer.produce("moved", bytes(1000), str(number), on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert set(failures) == {None}


def records(running: Running) -> int:
    """How many there are for a consumer, over all partitions."""
    seen = headrace("topics", "describe", "moved", "--json", "--bootstrap", running.bootstrap)
    assert seen.returncode == 0, seen
    described = json.loads(seen.stdout)
    topic = described[0] if isinstance(described, list) else described
    return sum(one["end_offset"] for one in topic["partitions"])


def test_a_broker_is_added_gets_its_share_and_is_removed_again(cluster: Running) -> None:
    added = headrace("cluster", "add", "--dir", cluster.folder)
    assert added.stdout.startswith("broker 4  127.0.0.1:"), added
    assert 4 not in {one for brokers in cluster.replicas("moved") for one in brokers}

    plan = cluster.cli("rebalance", "--dry-run")
    assert "to replicate" in plan.stdout, plan
    assert 4 not in {one for brokers in cluster.replicas("moved") for one in brokers}, "nothing was done"
    unasked = cluster.cli("rebalance")
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr

    done = cluster.cli("rebalance", "--yes", "--throttle", "20000000")
    assert done.returncode == 0, done
    held = cluster.loads()
    assert max(held.values()) - min(held.values()) <= 1, held
    assert held[4] >= 3, held
    assert "already distributed evenly" in cluster.cli("rebalance").stderr
    configs = headrace("configs", "list", "--broker", "4", "--bootstrap", cluster.bootstrap)
    assert "20000000" not in configs.stdout, "the throttle is gone when the move is"

    produce(cluster, 300)
    gone = cluster.cli("remove", "4", "--yes", "--dir", cluster.folder)
    assert gone.returncode == 0, gone
    assert "broker 4 unregistered" in gone.stderr
    assert {one for brokers in cluster.replicas("moved") for one in brokers} == {1, 2, 3}
    assert records(cluster) == 600
    well = "0 under-replicated, 0 without a leader"
    awaited(lambda: cluster.cli("status"), lambda told: well in told.stdout, well, PATIENCE_S)


def test_broker_is_removed_a_second_time(cluster: Running) -> None:
    """The directory of the first removal is still there, under its new name."""
    for _ in range(2):
        added = headrace("cluster", "add", "--dir", cluster.folder)
        assert added.stdout.startswith("broker 4  127.0.0.1:"), added
        removed = cluster.cli("remove", "4", "--yes", "--dir", cluster.folder)
        assert removed.returncode == 0, removed
        assert "unregistered" in removed.stderr
    status = json.loads(cluster.cli("status", "--json").stdout)
    assert [one["id"] for one in status["brokers"]] == [1, 2, 3]


def test_a_removal_that_would_lose_data_is_refused(cluster: Running) -> None:
    words = ("create", "everywhere", "--partitions", "1", "--replication-factor", "3", "--bootstrap", cluster.bootstrap)
    assert headrace("topics", *words).returncode == 0
    before = cluster.replicas("everywhere")
    refused = cluster.cli("remove", "2", "--yes")
    assert refused.returncode == 1
    assert "everywhere-0 has 3 replicas, and only 2 brokers would be left" in refused.stderr
    assert cluster.replicas("everywhere") == before
    unknown = cluster.cli("remove", "9", "--yes")
    assert unknown.returncode == 3
    assert "no broker has the id 9" in unknown.stderr
    assert headrace("cluster", "add", "--dir", str(Path(cluster.folder, "elsewhere"))).returncode == 1
