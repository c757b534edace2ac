"""DescribeQuorum, truthfully for one node: the cluster's facts have one voter, and it is this broker.

There is no metadata topic behind it. Offsets are the revisions of the facts, and since nobody is ever elected, the
leader's epoch is that of this broker's registration, which rises with every start.
"""

from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
from kio.schema.describe_quorum.v2.response import (
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, BrokerId, i32, i64, u16, wire_error
from headrace.broker.handlers.shared import METADATA_TOPIC, allows, reachable_brokers
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_CLUSTER = access_for(ApiKey.DESCRIBE_QUORUM, ResourceType.CLUSTER, Operation.DESCRIBE)

INT32_MAX = 2**31 - 1


async def handle(request: DescribeQuorumRequest, call: Call) -> DescribeQuorumResponse:
    if not allows(call, DESCRIBE_CLUSTER):
        return DescribeQuorumResponse(
            error_code=wire_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            error_message="Cluster authorization failed.",
            topics=(),
            nodes=(),
        )
    topics = tuple(
        TopicData(
            topic_name=topic.topic_name,
            partitions=tuple(
                _quorum(call)
                if (topic.topic_name, asked.partition_index) == (METADATA_TOPIC, 0)
                else _unknown(asked.partition_index)
                for asked in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return DescribeQuorumResponse(error_code=NO_ERROR, error_message=None, topics=topics, nodes=_nodes(call))


def _quorum(call: Call) -> PartitionData:
    node_id, image = call.broker.node_id, call.broker.image
    now_ms = call.broker.clock.wall_ms()
    ourselves = ReplicaState(
        replica_id=BrokerId(node_id),
        replica_directory_id=None,
        log_end_offset=i64(image.revision),
        last_fetch_timestamp=i64(now_ms),
        last_caught_up_timestamp=i64(now_ms),
    )
    return PartitionData(
        partition_index=i32(0),
        error_code=NO_ERROR,
        error_message=None,
        leader_id=BrokerId(node_id),
        leader_epoch=i32(min(image.brokers[node_id].epoch, INT32_MAX)),
        high_watermark=i64(image.revision),
        current_voters=(ourselves,),
        observers=(),
    )


def _unknown(index: int) -> PartitionData:
    return PartitionData(
        partition_index=i32(index),
        error_code=wire_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        error_message=f"only {METADATA_TOPIC}-0 has a quorum",
        leader_id=BrokerId(-1),
        leader_epoch=i32(-1),
        high_watermark=i64(-1),
        current_voters=(),
        observers=(),
    )


def _nodes(call: Call) -> tuple[Node, ...]:
    return tuple(
        Node(
            node_id=BrokerId(broker.node_id),
            listeners=(Listener(name=endpoint.name, host=endpoint.host, port=u16(endpoint.port)),),
        )
        for broker, endpoint in reachable_brokers(call)
        if broker.node_id == call.broker.node_id
    )
