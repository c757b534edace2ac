"""DeleteAcls: no filter can match anything, and each is told why."""

from kio.schema.delete_acls.v3.request import DeleteAclsRequest
from kio.schema.delete_acls.v3.response import DeleteAclsFilterResult, DeleteAclsResponse

from headrace.broker.call import Call
from headrace.broker.handlers.acl_outcome import acl_outcome
from headrace.broker.handlers.kafka_types import NO_THROTTLE, wire_error
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

ALTER_CLUSTER = access_for(ApiKey.DELETE_ACLS, ResourceType.CLUSTER, Operation.ALTER)


async def handle(request: DeleteAclsRequest, call: Call) -> DeleteAclsResponse:
    outcome = acl_outcome(call, ALTER_CLUSTER)
    row = DeleteAclsFilterResult(error_code=wire_error(outcome.code), error_message=outcome.message, matching_acls=())
    return DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=(row,) * len(request.filters))
