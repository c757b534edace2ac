"""ApiVersions: what we speak, to anybody who asks."""

from headrace.broker.call import Call
from headrace.broker.features import FEATURES
from headrace.model.errors import ErrorCode
from headrace.protocol.api_versions import ApiVersionsRequest, ApiVersionsResponse


async def handle(request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
    error = ErrorCode.NONE if request.is_valid else ErrorCode.INVALID_REQUEST
    return ApiVersionsResponse(error, features=FEATURES)
