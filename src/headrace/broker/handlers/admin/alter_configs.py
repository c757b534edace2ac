"""AlterConfigs and IncrementalAlterConfigs: one result for each requested resource, in request order.

- AlterConfigs replaces all configs of a resource; keys that are not named revert to their default.
- IncrementalAlterConfigs sets, deletes, appends to and subtracts from the named keys; other keys are unchanged.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_configs.v2.request import AlterConfigsResource as AlterConfigsAlterConfigsResource
from kio.schema.alter_configs.v2.response import (
    AlterConfigsResourceResponse as AlterConfigsAlterConfigsResourceResponse,
)
from kio.schema.alter_configs.v2.response import AlterConfigsResponse
from kio.schema.incremental_alter_configs.v1.request import (
    AlterConfigsResource as IncrementalAlterConfigsAlterConfigsResource,
)
from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse as IncrementalAlterConfigsAlterConfigsResourceResponse,
)
from kio.schema.incremental_alter_configs.v1.response import (
    IncrementalAlterConfigsResponse,
)

from headrace.broker.api.context import RequestContext
from headrace.broker.handlers.access import allows, repeated
from headrace.broker.handlers.kio_types import NO_ERROR, NO_THROTTLE, error_of
from headrace.core.controller.config_control import Alteration
from headrace.core.controller.config_control import Operation as ConfigOperation
from headrace.core.image.model import ConfigResource
from headrace.core.image.model import ResourceType as ConfigType
from headrace.model.errors import GroupDenied, HeadraceError, NotAuthorized, RequestError, TopicDenied
from headrace.security.authorization import Operation, ResourceType, access_for


class AskedResource(Protocol):
    """What the resources of both requests have in common."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


Asked = TypeVar("Asked", bound=AskedResource)
Change = TypeVar("Change")
Apply = Callable[[Sequence[tuple[ConfigResource, Change]]], Awaitable[Mapping[ConfigResource, HeadraceError | None]]]


async def _change_outcomes(
    asked: Sequence[Asked],
    change_of: Callable[[Asked], Change],
    apply: Apply[Change],
    call: RequestContext,
) -> list[tuple[Asked, HeadraceError | None]]:
    """Validates every resource, applies the valid changes, and returns a result for every resource."""
    twice = repeated(_key(resource) for resource in asked)
    failed: dict[int, HeadraceError] = {}
    wishes: list[tuple[ConfigResource, Change]] = []
    for number, resource in enumerate(asked):
        try:
            if _key(resource) in twice:
                raise RequestError("Each resource must appear at most once.")
            check_access(resource, call)
            wishes.append((_key(resource), change_of(resource)))
        except HeadraceError as error:
            failed[number] = error
    rows = await apply(wishes) if wishes else {}
    return [
        (resource, failed[number] if number in failed else rows[_key(resource)])
        for number, resource in enumerate(asked)
    ]


def check_access(resource: AskedResource, call: RequestContext) -> None:
    if resource.resource_type == ConfigType.TOPIC:
        access = access_for(call.api_key, ResourceType.TOPIC, Operation.ALTER_CONFIGS)
        if not allows(call, access, resource.resource_name):
            raise TopicDenied("Topic authorization failed.")
    elif resource.resource_type == ConfigType.GROUP:
        access = access_for(call.api_key, ResourceType.GROUP, Operation.ALTER_CONFIGS)
        if not allows(call, access, resource.resource_name):
            raise GroupDenied("Group authorization failed.")
    elif resource.resource_type in (ConfigType.BROKER, ConfigType.BROKER_LOGGER):
        if not allows(call, access_for(call.api_key, ResourceType.CLUSTER, Operation.ALTER_CONFIGS)):
            raise NotAuthorized("Cluster authorization failed.")
    else:
        raise RequestError(f"there are no configs on resources of type {resource.resource_type}")


def _check_keys(names: Sequence[str], without_value: Sequence[str]) -> None:
    """Raises RequestError for ambiguous changes: a key that is named twice, or a key without a value."""
    if repeated(names):
        raise RequestError("Error due to duplicate config keys")
    if without_value:
        raise RequestError("Null value not supported for : " + ", ".join(without_value))


def _key(resource: AskedResource) -> ConfigResource:
    return ConfigResource(resource.resource_type, resource.resource_name)


async def handle_alter_configs(request: AlterConfigsRequest, call: RequestContext) -> AlterConfigsResponse:
    apply = partial(call.broker.controller.legacy_alter_configs, validate_only=request.validate_only)
    rows = await _change_outcomes(request.resources, _configs, apply, call)
    return AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=tuple(_row(*row) for row in rows))


def _configs(resource: AlterConfigsAlterConfigsResource) -> dict[str, str | None]:
    if int(resource.resource_type) == ConfigType.BROKER_LOGGER:
        raise RequestError("log levels are changed with IncrementalAlterConfigs")
    names = [config.name for config in resource.configs]
    _check_keys(names, [config.name for config in resource.configs if config.value is None])
    return {config.name: config.value for config in resource.configs}


def _row(
    resource: AlterConfigsAlterConfigsResource, error: HeadraceError | None
) -> AlterConfigsAlterConfigsResourceResponse:
    code, message = (NO_ERROR, None) if error is None else error_of(error)
    return AlterConfigsAlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


async def handle_incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, call: RequestContext
) -> IncrementalAlterConfigsResponse:
    apply = partial(call.broker.controller.alter_configs, validate_only=request.validate_only)
    rows = await _change_outcomes(request.resources, _alterations, apply, call)
    return IncrementalAlterConfigsResponse(
        throttle_time=NO_THROTTLE, responses=tuple(_incremental_row(*row) for row in rows)
    )


def _alterations(resource: IncrementalAlterConfigsAlterConfigsResource) -> list[Alteration]:
    needing_value = [config for config in resource.configs if int(config.config_operation) != ConfigOperation.DELETE]
    _check_keys(
        [config.name for config in resource.configs],
        [config.name for config in needing_value if config.value is None],
    )
    return [Alteration(config.name, config.config_operation, config.value) for config in resource.configs]


def _incremental_row(
    resource: IncrementalAlterConfigsAlterConfigsResource, error: HeadraceError | None
) -> IncrementalAlterConfigsAlterConfigsResourceResponse:
    code, message = (NO_ERROR, None) if error is None else error_of(error)
    return IncrementalAlterConfigsAlterConfigsResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
