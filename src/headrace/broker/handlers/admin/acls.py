"""CreateAcls, DeleteAcls and DescribeAcls: every authorized request is rejected with SECURITY_DISABLED.

The broker stores no ACLs. Creations are rejected instead of accepted and never enforced; each filter of DeleteAcls
gets the error, and DescribeAcls returns no ACL.
"""

from kio.schema.create_acls.v3.request import CreateAclsRequest
from kio.schema.create_acls.v3.response import AclCreationResult, CreateAclsResponse
from kio.schema.delete_acls.v3.request import DeleteAclsRequest
from kio.schema.delete_acls.v3.response import DeleteAclsFilterResult, DeleteAclsResponse
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_acls.v3.response import DescribeAclsResponse

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows
from headrace.broker.handlers.kio_types import NO_THROTTLE, wire_error
from headrace.broker.handlers.row_encoding import CLUSTER_DENIED, Outcome
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.security.authorization import Access, Operation, ResourceType, access_for

DISABLED = Outcome(ErrorCode.SECURITY_DISABLED, "this broker has no access control")


def _acl_outcome(call: RequestContext, access: Access) -> Outcome:
    return DISABLED if allows(call, access) else CLUSTER_DENIED


CREATE_ACLS_ALTER_CLUSTER = access_for(ApiKey.CREATE_ACLS, ResourceType.CLUSTER, Operation.ALTER)


async def handle_create_acls(request: CreateAclsRequest, call: RequestContext) -> CreateAclsResponse:
    outcome = _acl_outcome(call, CREATE_ACLS_ALTER_CLUSTER)
    row = AclCreationResult(error_code=wire_error(outcome.code), error_message=outcome.message)
    return CreateAclsResponse(throttle_time=NO_THROTTLE, results=(row,) * len(request.creations))


DELETE_ACLS_ALTER_CLUSTER = access_for(ApiKey.DELETE_ACLS, ResourceType.CLUSTER, Operation.ALTER)


async def handle_delete_acls(request: DeleteAclsRequest, call: RequestContext) -> DeleteAclsResponse:
    outcome = _acl_outcome(call, DELETE_ACLS_ALTER_CLUSTER)
    row = DeleteAclsFilterResult(error_code=wire_error(outcome.code), error_message=outcome.message, matching_acls=())
    return DeleteAclsResponse(throttle_time=NO_THROTTLE, filter_results=(row,) * len(request.filters))


DESCRIBE_CLUSTER = access_for(ApiKey.DESCRIBE_ACLS, ResourceType.CLUSTER, Operation.DESCRIBE)


async def handle_describe_acls(request: DescribeAclsRequest, call: RequestContext) -> DescribeAclsResponse:
    outcome = _acl_outcome(call, DESCRIBE_CLUSTER)
    return DescribeAclsResponse(
        throttle_time=NO_THROTTLE, error_code=wire_error(outcome.code), error_message=outcome.message, resources=()
    )
