"""DescribeAcls: there are none, and none can be."""

from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_acls.v3.response import DescribeAclsResponse

from headrace.broker.call import Call
from headrace.broker.handlers.acl_outcome import acl_outcome
from headrace.broker.handlers.kafka_types import NO_THROTTLE, wire_error
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_CLUSTER = access_for(ApiKey.DESCRIBE_ACLS, ResourceType.CLUSTER, Operation.DESCRIBE)


async def handle(request: DescribeAclsRequest, call: Call) -> DescribeAclsResponse:
    outcome = acl_outcome(call, DESCRIBE_CLUSTER)
    return DescribeAclsResponse(
        throttle_time=NO_THROTTLE, error_code=wire_error(outcome.code), error_message=outcome.message, resources=()
    )
