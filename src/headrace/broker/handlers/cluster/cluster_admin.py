"""DescribeCluster, DescribeQuorum, UnregisterBroker and UpdateFeatures.

DescribeCluster returns the live brokers and the active controller. UnregisterBroker removes the registration of a
broker that will not return. UpdateFeatures changes nothing: levels belong to the release, so it succeeds only for the
level that is in effect.

DescribeQuorum maps the metadata store to Kafka's quorum. There is no metadata topic, and the metadata store does the
voting. The leader is the broker that holds the controller lease; the voters are the live brokers, each of which may
take it. Offsets are revisions of the metadata; the leader epoch is the revision at which the lease was taken. This
broker does not know how far other brokers have read the metadata, so their offsets are -1. While this broker cannot
use the store, the leader is -1 and the error message states the cause.
"""

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
from kio.schema.describe_quorum.v2.response import (
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import METADATA_TOPIC, allows, controller_id, operations_on, reachable_brokers
from headrace.broker.handlers.cluster.api_versions import FEATURES
from headrace.broker.handlers.kio_types import NO_ERROR, NO_THROTTLE, BrokerId, i8, i32, i64, u16, wire_error
from headrace.broker.handlers.row_encoding import CLUSTER_DENIED
from headrace.broker.reporting.health_checks import store_problem
from headrace.core.image.model import NO_CONTROLLER as DESCRIBE_QUORUM_NO_CONTROLLER
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.protocol.api import ApiKey
from headrace.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from headrace.protocol.messages.update_features import (
    FeatureRow,
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace.security.authorization import Operation, ResourceType, access_for

DESCRIBE_CLUSTER_DESCRIBE_CLUSTER = access_for(ApiKey.DESCRIBE_CLUSTER, ResourceType.CLUSTER, Operation.DESCRIBE)

BROKERS = 1
CONTROLLERS = 2
ENDPOINT_ERRORS_FROM = 1
DESCRIBE_CLUSTER_NO_CONTROLLER = -1


async def handle_describe_cluster(request: DescribeClusterRequest, call: RequestContext) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        return _refusal(request.endpoint_type, call)
    operations = OPERATIONS_NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = operations_on(call, ResourceType.CLUSTER) if allows(call, DESCRIBE_CLUSTER_DESCRIBE_CLUSTER) else 0
    brokers = tuple(
        DescribeClusterBroker(
            broker_id=BrokerId(broker.node_id),
            host=endpoint.host,
            port=i32(endpoint.port),
            rack=broker.rack,
            is_fenced=False,
        )
        for broker, endpoint in reachable_brokers(call)
    )
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=NO_ERROR,
        endpoint_type=i8(BROKERS),
        cluster_id=call.broker.image.cluster_id,
        controller_id=BrokerId(controller_id(call)),
        brokers=brokers,
        cluster_authorized_operations=i32(operations),
    )


def _refusal(endpoint_type: int, call: RequestContext) -> DescribeClusterResponse:
    """Rejects endpoint types other than brokers: controllers have no endpoints; any broker serves their requests."""
    code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if endpoint_type == CONTROLLERS else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    if call.api_version < ENDPOINT_ERRORS_FROM:
        code = ErrorCode.INVALID_REQUEST
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=wire_error(code),
        error_message=f"this is an endpoint of brokers (type {BROKERS}), not of type {endpoint_type}",
        cluster_id="",
        controller_id=BrokerId(DESCRIBE_CLUSTER_NO_CONTROLLER),
        brokers=(),
    )


DESCRIBE_QUORUM_DESCRIBE_CLUSTER = access_for(ApiKey.DESCRIBE_QUORUM, ResourceType.CLUSTER, Operation.DESCRIBE)

INT32_MAX = 2**31 - 1


async def handle_describe_quorum(request: DescribeQuorumRequest, call: RequestContext) -> DescribeQuorumResponse:
    if not allows(call, DESCRIBE_QUORUM_DESCRIBE_CLUSTER):
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


def _quorum(call: RequestContext) -> PartitionData:
    image = call.broker.image
    problem = store_problem(call.broker)
    now_ms = call.broker.clock.wall_ms()
    return PartitionData(
        partition_index=i32(0),
        error_code=NO_ERROR,
        error_message=problem,
        leader_id=BrokerId(image.controller if problem is None else DESCRIBE_QUORUM_NO_CONTROLLER),
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


def _nodes(call: RequestContext) -> tuple[Node, ...]:
    return tuple(
        Node(
            node_id=BrokerId(broker.node_id),
            listeners=(Listener(name=endpoint.name, host=endpoint.host, port=u16(endpoint.port)),),
        )
        for broker, endpoint in reachable_brokers(call)
    )


UNREGISTER_BROKER_ALTER_CLUSTER = access_for(ApiKey.UNREGISTER_BROKER, ResourceType.CLUSTER, Operation.ALTER)


async def handle_unregister_broker(request: UnregisterBrokerRequest, call: RequestContext) -> UnregisterBrokerResponse:
    if not allows(call, UNREGISTER_BROKER_ALTER_CLUSTER):
        denied = wire_error(CLUSTER_DENIED.code)
        return UnregisterBrokerResponse(
            throttle_time=NO_THROTTLE, error_code=denied, error_message=CLUSTER_DENIED.message
        )
    try:
        await call.broker.controller.unregister(request.broker_id)
    except HeadraceError as error:
        return UnregisterBrokerResponse(
            throttle_time=NO_THROTTLE, error_code=wire_error(error.code), error_message=str(error)
        )
    return UnregisterBrokerResponse(throttle_time=NO_THROTTLE, error_code=NO_ERROR, error_message=None)


UPDATE_FEATURES_ALTER_CLUSTER = access_for(ApiKey.UPDATE_FEATURES, ResourceType.CLUSTER, Operation.ALTER)
LEVELS = {feature.name: feature.level for feature in FEATURES}


async def handle_update_features(request: UpdateFeaturesRequest, call: RequestContext) -> UpdateFeaturesResponse:
    if not allows(call, UPDATE_FEATURES_ALTER_CLUSTER):
        return UpdateFeaturesResponse(*CLUSTER_DENIED)
    return UpdateFeaturesResponse(rows=[_answer_to(update) for update in request.updates])


def _answer_to(update: FeatureUpdate) -> FeatureRow:
    level = LEVELS.get(update.feature)
    if level == update.level:
        return FeatureRow(update.feature)
    if level is None:
        known = " and ".join(LEVELS)
        message = f"no feature is called {update.feature!r}; this release of headrace has {known}"
    else:
        here = f"{update.feature} is {level} in this release of headrace"
        message = f"{here}, and cannot be {update.level}: levels change with the release"
    return FeatureRow(update.feature, ErrorCode.INVALID_UPDATE_VERSION, message)
