"""Reassignments, preferred leader elections and broker removal, with requests that librdkafka's admin client lacks.

Any broker executes them.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

from headrace.client.core.errors import KafkaApiError
from headrace.client.sync.transport import Connection
from headrace.model.ids import TopicPartition, by_topic

ANSWER_TIMEOUT = timedelta(seconds=30)
PREFERRED = 0


def move(connection: Connection, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """Starts to move these partitions to these replicas; raises the first error."""
    from kio.schema.alter_partition_reassignments.v0.request import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )
    from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse

    topics = tuple(
        ReassignableTopic(
            name=topic,  # type: ignore[arg-type]
            partitions=tuple(
                ReassignablePartition(partition_index=index, replicas=wanted[TopicPartition(topic, index)])  # type: ignore[arg-type]
                for index in indexes
            ),
        )
        for topic, indexes in by_topic(sorted(wanted)).items()
    )
    request = AlterPartitionReassignmentsRequest(timeout=ANSWER_TIMEOUT, topics=topics)  # type: ignore[arg-type]
    answer = connection.call(request, AlterPartitionReassignmentsResponse)
    rows = [row for topic in answer.responses for row in topic.partitions]
    _raise_first([(int(answer.error_code), answer.error_message)])
    _raise_first((int(row.error_code), row.error_message) for row in rows)


def moving(connection: Connection) -> dict[TopicPartition, tuple[int, ...]]:
    """Returns the partitions that are being reassigned, with the replicas that are added."""
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
    from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse

    request = ListPartitionReassignmentsRequest(timeout=ANSWER_TIMEOUT, topics=None)  # type: ignore[arg-type]
    answer = connection.call(request, ListPartitionReassignmentsResponse)
    _raise_first([(int(answer.error_code), answer.error_message)])
    return {
        TopicPartition(topic.name, row.partition_index): tuple(row.adding_replicas)
        for topic in answer.topics
        for row in topic.partitions
    }


def elect_preferred_leaders(connection: Connection, places: Collection[TopicPartition]) -> None:
    """Elects the preferred leader of each partition where possible; a partition that has it already is no error."""
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
    from kio.schema.elect_leaders.v2.response import ElectLeadersResponse

    topics = tuple(
        TopicPartitions(topic=topic, partitions=tuple(indexes))  # type: ignore[arg-type]
        for topic, indexes in by_topic(sorted(places)).items()
    )
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=topics, timeout=ANSWER_TIMEOUT)  # type: ignore[arg-type]
    connection.call(request, ElectLeadersResponse)  # where the election was not possible, the current leader stays


def unregister(connection: Connection, broker: int) -> None:
    """Unregisters a broker that will not return."""
    from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
    from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

    answer = connection.call(UnregisterBrokerRequest(broker_id=broker), UnregisterBrokerResponse)  # type: ignore[arg-type]
    _raise_first([(int(answer.error_code), answer.error_message)])


def sizes(connection: Connection) -> dict[TopicPartition, int]:
    """Returns the size in bytes of each replica of the connected broker."""
    from kio.schema.describe_log_dirs.v2.request import DescribeLogDirsRequest
    from kio.schema.describe_log_dirs.v2.response import DescribeLogDirsResponse

    answer = connection.call(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    return {
        TopicPartition(topic.name, row.partition_index): int(row.partition_size)
        for folder in answer.results
        for topic in folder.topics
        for row in topic.partitions
        if not row.is_future_key
    }


def _raise_first(rows: Iterable[tuple[int, str | None]]) -> None:
    for code, message in rows:
        if code:
            raise KafkaApiError(code, message or f"error {code}")
