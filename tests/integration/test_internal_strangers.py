"""A stranger who speaks as a broker: it is refused, and moves no watermark."""

import re
from collections.abc import Iterator
from uuid import UUID

import pytest
from confluent_kafka import Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from headrace.model.errors import ErrorCode
from headrace.protocol.messages.replica_fetch import (
    Fetched,
    ReplicaFetch,
    WantedPartition,
    decode_response,
    encode_request,
)
from headrace.testing.local.cluster import LocalCluster
from tests.integration.raw import RawConnection
from tests.integration.test_local_cluster import PATIENCE_S, Sender, create, wait_for_isr

TOPIC = "coveted"
RECORDS = 5


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, links=True) as running:  # links: brokers have a listener of their own
        yield running


def id_of(cluster: LocalCluster, topic: str) -> UUID:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(PATIENCE_S)
    bits = described.topic_id.get_most_significant_bits(), described.topic_id.get_least_significant_bits()
    return UUID(bytes=b"".join((half % 2**64).to_bytes(8) for half in bits))


def fetch_as(port: int, replica: int, epoch: int, topic_id: UUID, offset: int) -> Fetched:
    """A follower's request, which claims to hold everything below the offset."""
    wanted = {(topic_id, 0): WantedPartition(0, offset, 0, 0, 1024)}
    request = ReplicaFetch(replica, epoch, 0, 0, 1024, 0, -1, wanted, ())
    with RawConnection(port) as connection:
        connection.send(encode_request(request, 1, "stranger"))
        return decode_response(memoryview(connection.receive()))


def end_of(cluster: LocalCluster) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    asked = TopicPartition(TOPIC, 0)
    return int(admin.list_offsets({asked: OffsetSpec.latest()})[asked].result(PATIENCE_S).offset)


def test_a_stranger_that_claims_to_be_a_replica_commits_nothing(cluster: LocalCluster) -> None:
    create(cluster, TOPIC)
    Sender(cluster, TOPIC).send(RECORDS)
    wait_for_isr(cluster, TOPIC, 3)
    leader = cluster.leader(TOPIC)
    followers = [one for one in cluster.brokers if one != leader]
    topic_id = id_of(cluster, TOPIC)
    for one in followers:
        cluster.pause(one)
    try:
        producer = Producer({"bootstrap.servers": cluster.brokers[leader].bootstrap, "acks": 1})
        producer.produce(TOPIC, b"nobody else has this")
        assert producer.flush(PATIENCE_S) == 0
        broker = cluster.brokers[leader]
        said = re.search(r"serves INTERNAL on 127.0.0.1 port (\d+)", broker.output())
        assert said is not None
        for follower in followers:
            public = fetch_as(broker.port, follower, 1, topic_id, RECORDS + 1)
            assert (public.error, public.rows) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
            for epoch in (-1, 0, 2**40):
                internal = fetch_as(int(said[1]), follower, epoch, topic_id, RECORDS + 1)
                assert (internal.error, internal.rows) == (ErrorCode.STALE_BROKER_EPOCH, [])
        assert end_of(cluster) == RECORDS, "committed is what replicas hold"
    finally:
        for one in followers:
            cluster.resume(one)
    wait_for_isr(cluster, TOPIC, 3)
