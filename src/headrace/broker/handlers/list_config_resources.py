"""ListConfigResources: what configs can be described on, by type."""

from collections.abc import Iterable

from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
from kio.schema.list_config_resources.v1.response import ConfigResource, ListConfigResourcesResponse

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, i8, wire_error
from headrace.broker.handlers.shared import allows
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.values import ResourceType as ConfigType
from headrace.model.errors import ErrorCode
from headrace.protocol.api import ApiKey
from headrace.security.access import Operation, ResourceType, access_for

DESCRIBE_CONFIGS = access_for(ApiKey.LIST_CONFIG_RESOURCES, ResourceType.CLUSTER, Operation.DESCRIBE_CONFIGS)

CLIENT_METRICS = 16
ALL_TYPES = (ConfigType.TOPIC, ConfigType.BROKER, ConfigType.BROKER_LOGGER, CLIENT_METRICS, ConfigType.GROUP)


async def handle(request: ListConfigResourcesRequest, call: Call) -> ListConfigResourcesResponse:
    # Version 0 knew nothing but client metrics, and its name was another one.
    types = dict.fromkeys(request.resource_types or ALL_TYPES) if call.api_version else {CLIENT_METRICS: None}
    error = NO_ERROR
    if not allows(call, DESCRIBE_CONFIGS):
        error = wire_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    elif not set(ALL_TYPES).issuperset(types):
        error = wire_error(ErrorCode.UNSUPPORTED_VERSION)
    resources = (
        ConfigResource(resource_name=name, resource_type=i8(kind))
        for kind in types
        for name in _names(kind, call.broker.image)
    )
    return ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        config_resources=tuple(resources) if error == NO_ERROR else (),
    )


def _names(kind: int, image: ClusterImage) -> Iterable[str]:
    match kind:
        case ConfigType.TOPIC:
            return image.topics
        case ConfigType.BROKER | ConfigType.BROKER_LOGGER:
            return map(str, sorted(image.brokers))
        case ConfigType.GROUP:
            return sorted(image.group_configs)
        case _:
            return ()  # client metrics have no configs here
