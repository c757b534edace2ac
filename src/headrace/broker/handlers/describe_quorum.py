"""DescribeQuorum, as far as there is something to say: who controls the cluster, who could, how new the facts are.

There is no metadata topic behind it, and the votes are the store's: the leader is the broker that holds the seat of the
controller, the voters are those that are there and may take it. Offsets are revisions of the facts, the epoch is the
revision with which the seat was taken. How far the other brokers have read the facts, nobody here knows: that is -1.
A broker that cannot use the store knows no leader: the leader is -1, and the message says why.
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
from headrace.broker.store_state import store_problem
from headrace.core.cluster.values import NO_CONTROLLER
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
    image = call.broker.image
    problem = store_problem(call.broker)
    now_ms = call.broker.clock.wall_ms()
    return PartitionData(
        partition_index=i32(0),
        error_code=NO_ERROR,
        error_message=problem,
        leader_id=BrokerId(image.controller if problem is None else NO_CONTROLLER),
        leader_epoch=i32(min(image.controller_epoch, INT32_MAX)),
        high_watermark=i64(image.revision),
        current_voters=tuple(
            _voter(node_id, image.revision, now_ms) if node_id == call.broker.node_id else _voter(node_id, -1, -1)
            for node_id in image.live_brokers()
        ),
        observers=(),
    )


def _voter(node_id: int, revision: int, at_ms: int) -> ReplicaState:
    return ReplicaState(
        replica_id=BrokerId(node_id),
        replica_directory_id=None,
        log_end_offset=i64(revision),
        last_fetch_timestamp=i64(at_ms),
        last_caught_up_timestamp=i64(at_ms),
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
    )
