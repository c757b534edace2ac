"""What AlterConfigs and IncrementalAlterConfigs share: one answer for each resource asked for, in their order."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from headrace.broker.call import Call
from headrace.broker.handlers.shared import allows, repeated
from headrace.core.cluster.values import ConfigResource
from headrace.core.cluster.values import ResourceType as ConfigType
from headrace.model.errors import GroupDenied, HeadraceError, NotAuthorized, RequestError, TopicDenied
from headrace.security.access import Operation, ResourceType, access_for


class AskedResource(Protocol):
    """What both requests have of a resource."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


Asked = TypeVar("Asked", bound=AskedResource)
Change = TypeVar("Change")
Apply = Callable[[Sequence[tuple[ConfigResource, Change]]], Awaitable[Mapping[ConfigResource, HeadraceError | None]]]


async def outcomes(
    asked: Sequence[Asked],
    change_of: Callable[[Asked], Change],
    apply: Apply[Change],
    call: Call,
) -> list[tuple[Asked, HeadraceError | None]]:
    """Check every resource, have the good ones changed, and answer for all of them."""
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


def check_access(resource: AskedResource, call: Call) -> None:
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


def check_keys(names: Sequence[str], without_value: Sequence[str]) -> None:
    """Refuse what is ambiguous: a key that is named twice, or one that is set to nothing."""
    if repeated(names):
        raise RequestError("Error due to duplicate config keys")
    if without_value:
        raise RequestError("Null value not supported for : " + ", ".join(without_value))


def _key(resource: AskedResource) -> ConfigResource:
    return ConfigResource(resource.resource_type, resource.resource_name)
