"""AlterConfigs: a resource's configs become exactly those given; what is not named goes back to its default."""

from functools import partial

from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource
from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse, AlterConfigsResponse

from headrace.broker.call import Call
from headrace.broker.handlers.config_changes import check_keys, outcomes
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, error_of
from headrace.core.cluster.values import ResourceType as ConfigType
from headrace.model.errors import HeadraceError, RequestError


async def handle(request: AlterConfigsRequest, call: Call) -> AlterConfigsResponse:
    apply = partial(call.broker.controller.replace_configs, validate_only=request.validate_only)
    rows = await outcomes(request.resources, _configs, apply, call)
    return AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(_row(*row) for row in rows))


def _configs(resource: AlterConfigsResource) -> dict[str, str | None]:
    if int(resource.resource_type) == ConfigType.BROKER_LOGGER:
        raise RequestError("log levels are changed with IncrementalAlterConfigs")
    names = [config.name for config in resource.configs]
    check_keys(names, [config.name for config in resource.configs if config.value is None])
    return {config.name: config.value for config in resource.configs}


def _row(resource: AlterConfigsResource, error: HeadraceError | None) -> AlterConfigsResourceResponse:
    code, message = (NO_ERROR, None) if error is None else error_of(error)
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
