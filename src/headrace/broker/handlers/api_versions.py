"""ApiVersions: what we speak, to anybody who asks."""

from headrace.broker.call import Call
from headrace.model.errors import ErrorCode
from headrace.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse, Feature

# What clients use only where every broker has it; one that is missing here sends them back to older ways.
FEATURES = (
    Feature("group.version", lowest=0, highest=1, level=1),  # KIP-848: groups whose assignment the broker decides
    Feature("transaction.version", lowest=0, highest=2, level=2),  # KIP-890: epochs bumped at every end
)


async def handle(request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    error = ErrorCode.NONE if request.is_valid else ErrorCode.INVALID_REQUEST
    return ApiVersionsResponse(error, features=FEATURES)
