"""UpdateFeatures: levels belong to the release, so a client learns whether what it wants is so already."""

from headrace.broker.call import Call
from headrace.broker.features import FEATURES
from headrace.broker.handlers.shared import allows
from headrace.broker.handlers.topic_rows import CLUSTER_DENIED
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.protocol.update_features import (
    FeatureRow,
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from headrace.security.access import Operation, ResourceType, access_for

ALTER_CLUSTER = access_for(ApiKey.UPDATE_FEATURES, ResourceType.CLUSTER, Operation.ALTER)
LEVELS = {feature.name: feature.level for feature in FEATURES}


async def handle(request: UpdateFeaturesRequest, call: Call) -> UpdateFeaturesResponse:
    if not allows(call, ALTER_CLUSTER):
        return UpdateFeaturesResponse(*CLUSTER_DENIED)
    return UpdateFeaturesResponse(rows=[_answer_to(update) for update in request.updates])


def _answer_to(update: FeatureUpdate) -> FeatureRow:
    level = LEVELS.get(update.feature)
    if level == update.level:
        return FeatureRow(update.feature)
    if level is None:
        known = " and ".join(LEVELS)
        message = f"no feature is called {update.feature!r}; this release of headrace has {known}"
    else:
        here = f"{update.feature} is {level} in this release of headrace"
        message = f"{here}, and cannot be {update.level}: levels change with the release"
    return FeatureRow(update.feature, ErrorCode.INVALID_UPDATE_VERSION, message)
