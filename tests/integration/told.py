"""What one broker says about a topic. A client would ask any broker that it knows, perhaps one that is cut off."""

from typing import NamedTuple

from kio.schema.metadata.v8.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v8.response import MetadataResponse
from kio.schema.types import TopicName

from headrace.client.sync.transport import Connection

ANSWER_SECONDS_MAX = 5.0


class ToldPartition(NamedTuple):
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Told(NamedTuple):
    brokers: dict[int, tuple[str, int]]  # where each can be reached
    partitions: list[ToldPartition]


def leader_told_by(host: str, port: int, topic: str) -> int:
    """Of partition 0, for who waits for one: -1 also while the broker does not answer or does not know the topic."""
    told = told_or_none(host, port, topic)
    return told.partitions[0].leader if told is not None and told.partitions else -1


def told_or_none(host: str, port: int, topic: str) -> Told | None:
    """For who asks again: a broker that is paused, starts or hangs up gives no answer yet."""
    try:
        return told_by(host, port, topic)
    except OSError:
        return None


def told_by(host: str, port: int, topic: str) -> Told:
    """OSError if it does not answer."""
    request = MetadataRequest(
        topics=(MetadataRequestTopic(name=TopicName(topic)),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    with Connection(host, port, ANSWER_SECONDS_MAX) as connection:
        answer = connection.call(request, MetadataResponse)
    rows = sorted(answer.topics[0].partitions, key=lambda row: row.partition_index)
    return Told(
        {broker.node_id: (broker.host, broker.port) for broker in answer.brokers},
        [ToldPartition(row.leader_id, tuple(row.replica_nodes), tuple(row.isr_nodes)) for row in rows],
    )
