"""DescribeCluster: who is there, and who takes changes."""

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker, DescribeClusterResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, BrokerId, i8, i32, wire_error
from headrace.broker.handlers.shared import allows, controller_id, operations_on, reachable_brokers
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.metadata import OPERATIONS_NOT_ASKED
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_CLUSTER = access_for(ApiKey.DESCRIBE_CLUSTER, ResourceType.CLUSTER, Operation.DESCRIBE)

BROKERS = 1
CONTROLLERS = 2
ENDPOINT_ERRORS_FROM = 1
NO_CONTROLLER = -1


async def handle(request: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        return _refusal(request.endpoint_type, call)
    operations = OPERATIONS_NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = operations_on(call, ResourceType.CLUSTER) if allows(call, DESCRIBE_CLUSTER) else 0
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


def _refusal(endpoint_type: int, call: Call) -> DescribeClusterResponse:
    """Controllers have no addresses of their own here: clients reach them through any broker."""
    code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if endpoint_type == CONTROLLERS else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    if call.api_version < ENDPOINT_ERRORS_FROM:
        code = ErrorCode.INVALID_REQUEST
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=wire_error(code),
        error_message=f"this is an endpoint of brokers (type {BROKERS}), not of type {endpoint_type}",
        cluster_id="",
        controller_id=BrokerId(NO_CONTROLLER),
        brokers=(),
    )
