"""IncrementalAlterConfigs: set, delete, append, subtract; keys that are not named stay as they are."""

from functools import partial

from kio.schema.incremental_alter_configs.v1.request import AlterConfigsResource, IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from headrace.broker.call import Call
from headrace.broker.handlers.config_changes import check_keys, outcomes
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, error_of
from headrace.core.cluster.alter_configs import Alteration, Operation
from headrace.model.errors import HeadraceError


async def handle(request: IncrementalAlterConfigsRequest, call: Call) -> IncrementalAlterConfigsResponse:
    apply = partial(call.broker.controller.alter_configs, validate_only=request.validate_only)
    rows = await outcomes(request.resources, _alterations, apply, call)
    return IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(_row(*row) for row in rows))


def _alterations(resource: AlterConfigsResource) -> list[Alteration]:
    needing_value = [config for config in resource.configs if int(config.config_operation) != Operation.DELETE]
    check_keys(
        [config.name for config in resource.configs],
        [config.name for config in needing_value if config.value is None],
    )
    return [Alteration(config.name, config.config_operation, config.value) for config in resource.configs]


def _row(resource: AlterConfigsResource, error: HeadraceError | None) -> AlterConfigsResourceResponse:
    code, message = (NO_ERROR, None) if error is None else error_of(error)
    return AlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
