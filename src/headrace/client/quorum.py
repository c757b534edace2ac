"""DescribeQuorum for tools: librdkafka's admin client does not have it."""

from headrace.client.connection import Connection

METADATA_TOPIC = "__cluster_metadata"


def quorum_problem(connection: Connection) -> str | None:
    """Why the broker on this connection knows no active controller; None if it knows one."""
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest, PartitionData, TopicData
    from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse

    topic = TopicData(topic_name=METADATA_TOPIC, partitions=(PartitionData(partition_index=0),))  # type: ignore[arg-type]
    answer = connection.call(DescribeQuorumRequest(topics=(topic,)), DescribeQuorumResponse)
    rows = [row for found in answer.topics for row in found.partitions]
    return next((row.error_message or "no active controller" for row in rows if row.leader_id < 0), None)
