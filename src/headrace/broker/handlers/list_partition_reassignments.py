"""ListPartitionReassignments, truthfully for one node: none is in progress, whichever topics are asked about."""

from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_THROTTLE, wire_error
from headrace.broker.handlers.shared import allows
from headrace.broker.handlers.topic_rows import CLUSTER_DENIED, Outcome
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_CLUSTER = access_for(ApiKey.LIST_PARTITION_REASSIGNMENTS, ResourceType.CLUSTER, Operation.DESCRIBE)


async def handle(request: ListPartitionReassignmentsRequest, call: Call) -> ListPartitionReassignmentsResponse:
    outcome = Outcome(ErrorCode.NONE) if allows(call, DESCRIBE_CLUSTER) else CLUSTER_DENIED
    return ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=wire_error(outcome.code), error_message=outcome.message, topics=()
    )
