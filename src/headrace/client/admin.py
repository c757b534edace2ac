"""Topics, offsets and quorum for command-line tools, through librdkafka's admin client.

Thin, typed, blocking functions; they print nothing and raise on errors. DescribeQuorum is sent as a raw request,
because librdkafka's admin client lacks it.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.client.librdkafka import REACH_TIMEOUT_S, check_reachable, make_admin
from headrace.client.sync.transport import Connection

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient


Key = TypeVar("Key")
# ListOffsets timestamps for the first and the next offset.
_EARLIEST, _LATEST = -2, -1


class PartitionView(NamedTuple):
    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    start_offset: int | None
    end_offset: int | None


def connect(bootstrap: str, timeout_s: float) -> "AdminClient":
    check_reachable(bootstrap, min(timeout_s, REACH_TIMEOUT_S))
    return make_admin(bootstrap)


def outcomes(
    futures: "Mapping[Key, Future[Any]]",
) -> "tuple[dict[Key, Any], dict[Key, KafkaError]]":
    """Waits for every future; returns the results and the broker's errors, each by key."""
    from confluent_kafka import KafkaException

    done: dict[Key, Any] = {}
    refused: dict[Key, KafkaError] = {}
    for key, future in futures.items():
        try:
            done[key] = future.result()
        except KafkaException as error:
            refused[key] = error.args[0]
    return done, refused


def topic_names(admin: "AdminClient", timeout_s: float, *, internal: bool) -> list[tuple[str, int, int]]:
    """Returns name, partition count and replication factor of each topic, sorted by name."""
    topics = admin.list_topics(timeout=timeout_s).topics
    rows = []
    for name in sorted(topics):
        if internal or not name.startswith("__"):
            partitions = topics[name].partitions
            replicas = max((len(one.replicas) for one in partitions.values()), default=0)
            rows.append((name, len(partitions), replicas))
    return rows


def describe_topics(
    admin: "AdminClient", names: list[str], timeout_s: float
) -> "tuple[dict[str, Any], dict[str, KafkaError]]":
    from confluent_kafka import TopicCollection

    return outcomes(admin.describe_topics(TopicCollection(names), request_timeout=timeout_s))


def partition_views(admin: "AdminClient", topic: str, description: Any, timeout_s: float) -> list[PartitionView]:
    """Returns the partitions of one topic with their start and end offsets; None where no leader returned one."""
    numbers = [partition.id for partition in description.partitions if partition.leader is not None]
    starts = list_offsets(admin, topic, numbers, "earliest", timeout_s)
    ends = list_offsets(admin, topic, numbers, "latest", timeout_s)
    return [
        PartitionView(
            partition.id,
            partition.leader.id if partition.leader is not None else -1,
            [node.id for node in partition.replicas],
            [node.id for node in partition.isr],
            starts.get(partition.id),
            ends.get(partition.id),
        )
        for partition in sorted(description.partitions, key=lambda one: one.id)
    ]


def list_offsets(
    admin: "AdminClient", topic: str, partitions: list[int], when: str | int, timeout_s: float
) -> dict[int, int]:
    """Returns for each partition its `earliest` or `latest` offset, or the first at or after a timestamp in ms."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    if not partitions:
        return {}
    word = {"earliest": _EARLIEST, "latest": _LATEST}
    spec = OffsetSpec.for_timestamp(when if isinstance(when, int) else word[when])
    asked = {TopicPartition(topic, partition): spec for partition in partitions}
    done, _ = outcomes(admin.list_offsets(asked, request_timeout=timeout_s))
    return {place.partition: result.offset for place, result in done.items()}


METADATA_TOPIC = "__cluster_metadata"


def quorum_problem(connection: Connection) -> str | None:
    """Returns why the connected broker has no active controller; None if it has one."""
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest, PartitionData, TopicData
    from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse

    topic = TopicData(topic_name=METADATA_TOPIC, partitions=(PartitionData(partition_index=0),))  # type: ignore[arg-type]
    answer = connection.call(DescribeQuorumRequest(topics=(topic,)), DescribeQuorumResponse)
    rows = [row for found in answer.topics for row in found.partitions]
    return next((row.error_message or "no active controller" for row in rows if row.leader_id < 0), None)
