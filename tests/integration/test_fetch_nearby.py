"""Raw fetches of a client that is in a rack: from the replica there while it serves, and from the leader otherwise."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.sync.client import ClientConfig, Cluster
from headrace.client.sync.fetcher import Fetched, fetch_from
from headrace.client.sync.transport import Connection
from headrace.model.ids import TopicPartition
from headrace.testing import LocalCluster
from tests.integration.test_local_cluster import PATIENCE_S, wait_for_isr, wait_until_watched

LEADER, NEAR = 1, 2
BATCHES, PER_BATCH = 8, 5


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalCluster]:
    """Their sessions are long, so that the leader stays the one that is named. Who is killed is missed all the same."""
    settings = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "broker.session.timeout.ms": "60000",
    }
    with LocalCluster(2, memory=False, settings=settings, racks={LEADER: "a", NEAR: "b"}) as running:
        yield running


class WatchedCluster(Cluster):
    """Remembers who was asked instead of a leader."""

    def __init__(self, settings: ClientConfig) -> None:
        super().__init__(settings)
        self.asked_nearby: list[int] = []

    def broker_connection(self, node_id: int) -> Connection:
        self.asked_nearby.append(node_id)
        return super().broker_connection(node_id)


@pytest.fixture
def client(brokers: LocalCluster) -> Iterator[WatchedCluster]:
    cluster = WatchedCluster(ClientConfig(bootstrap=brokers.bootstrap, rack="b"))
    yield cluster
    cluster.close()


def filled(brokers: LocalCluster, name: str) -> TopicPartition:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic(name, 1, replica_assignment=[[LEADER, NEAR]])])[name].result(PATIENCE_S)
    wait_for_isr(brokers, name, 2)
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "linger.ms": 5})
    for _ in range(BATCHES):
        for number in range(PER_BATCH):
            producer.produce(name, b"%d" % number)
        assert producer.flush(PATIENCE_S) == 0  # so many batches at least
    return TopicPartition(name, 0)


def fetches(client: Cluster, partition: TopicPartition, end: int = BATCHES * PER_BATCH) -> Iterator[Fetched]:
    return fetch_from(client, partition, 0, end, read_committed=False, bytes_max=1)  # a batch at a time


def offsets(fetched: list[Fetched]) -> list[int]:
    headers = [header for one in fetched for _, header in one.batches]
    return [offset for header in headers for offset in range(header.base_offset, header.next_offset)]


def test_a_client_in_a_rack_reads_from_the_replica_there(brokers: LocalCluster, client: WatchedCluster) -> None:
    partition = filled(brokers, "near")
    found = list(fetches(client, partition))
    assert offsets(found) == list(range(BATCHES * PER_BATCH))
    assert set(client.asked_nearby) == {NEAR}
    assert len(found) >= BATCHES


def test_a_client_elsewhere_reads_from_the_leader(brokers: LocalCluster) -> None:
    partition = filled(brokers, "elsewhere")
    for rack in ("", "a", "nowhere"):
        client = WatchedCluster(ClientConfig(bootstrap=brokers.bootstrap, rack=rack))
        assert offsets(list(fetches(client, partition))) == list(range(BATCHES * PER_BATCH))
        assert client.asked_nearby == []
        client.close()


def test_a_replica_that_goes_away_in_the_middle_costs_nothing(brokers: LocalCluster, client: WatchedCluster) -> None:
    partition = filled(brokers, "going")
    reading = fetches(client, partition)
    found = [next(reading)]
    assert client.asked_nearby == [NEAR]
    wait_until_watched(brokers, NEAR, LEADER)
    brokers.kill(NEAR)
    found += list(reading)
    assert offsets(found) == list(range(BATCHES * PER_BATCH)), "each once, whoever gave it"
    wait_for_isr(brokers, "going", 1)  # back before it is missed, it would have to wait for the end of its own session
    brokers.restart(NEAR)
    wait_for_isr(brokers, "going", 2)
