"""ApiVersions and the features that it lists.

ApiVersions requires no authorization. A release implements exactly one level of each feature, so the supported range
is that level and it changes only with the release. Clients that do not support a feature use the older protocol.
"""

from headrace.broker.api.context import RequestContext
from headrace.model.errors import ErrorCode
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, Feature

FEATURES = (
    Feature("group.version", lowest=1, highest=1, level=1),  # KIP-848: consumer protocol
    # KIP-890: epoch bumped at the end of every transaction
    Feature("transaction.version", lowest=2, highest=2, level=2),
)


async def handle_api_versions(request: ApiVersionsRequest, call: RequestContext) -> ApiVersionsResponse:
    error = ErrorCode.NONE if request.is_valid else ErrorCode.INVALID_REQUEST
    return ApiVersionsResponse(error, features=FEATURES)
