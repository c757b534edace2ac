"""ApiVersions, and the features that it lists.

A level says how a feature works, and a release works in one way: so the levels cannot be changed apart from it, and the
range that is supported is that one level. A client that does not know a feature keeps to older ways.

ApiVersions: what we speak, to anybody who asks.
"""

from headrace.broker.api.context import RequestContext
from headrace.model.errors import ErrorCode
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, Feature

FEATURES = (
    Feature("group.version", lowest=1, highest=1, level=1),  # KIP-848: groups whose assignment the broker decides
    Feature("transaction.version", lowest=2, highest=2, level=2),  # KIP-890: epochs bumped at every end
)


async def handle_api_versions(request: ApiVersionsRequest, call: RequestContext) -> ApiVersionsResponse:
    error = ErrorCode.NONE if request.is_valid else ErrorCode.INVALID_REQUEST
    return ApiVersionsResponse(error, features=FEATURES)
