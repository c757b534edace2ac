"""CreateAcls: every creation is refused, rather than accepted and never enforced."""

from kio.schema.create_acls.v3.request import CreateAclsRequest
from kio.schema.create_acls.v3.response import AclCreationResult, CreateAclsResponse

from headrace.broker.call import Call
from headrace.broker.handlers.acl_outcome import acl_outcome
from headrace.broker.handlers.kafka_types import NO_THROTTLE, wire_error
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

ALTER_CLUSTER = access_for(ApiKey.CREATE_ACLS, ResourceType.CLUSTER, Operation.ALTER)


async def handle(request: CreateAclsRequest, call: Call) -> CreateAclsResponse:
    outcome = acl_outcome(call, ALTER_CLUSTER)
    row = AclCreationResult(error_code=wire_error(outcome.code), error_message=outcome.message)
    return CreateAclsResponse(throttle_time=NO_THROTTLE, results=(row,) * len(request.creations))
