"""DescribeConfigs and ListConfigResources.

DescribeConfigs returns every config of a resource with its source, synonyms and documentation. A tool that requests a
thousand topics gets forty thousand rows. They are built and encoded one resource at a time, so that other clients are
served in between.

ListConfigResources returns the resources that have configs, by type.
"""

from collections.abc import Iterable, Iterator
from typing import cast

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
from kio.schema.list_config_resources.v1.response import ConfigResource, ListConfigResourcesResponse

from headrace.broker.api.context import RequestContext
from headrace.broker.controller.logging_control import log_levels
from headrace.broker.handlers.access import allows
from headrace.broker.handlers.kio_types import NO_ERROR, NO_THROTTLE, error_of, i8, wire_error
from headrace.broker.runtime.cooperative import run_in_slices
from headrace.config.values import ConfigType as ValueType
from headrace.core.controller.config_describe import (
    CLUSTER_DEFAULT,
    ConfigRow,
    ConfigSource,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import ResourceType as ConfigType
from headrace.core.topic import check_topic_name
from headrace.model.errors import (
    ErrorCode,
    GroupDenied,
    HeadraceError,
    NotAuthorized,
    RequestError,
    TopicDenied,
    UnknownTopic,
)
from headrace.protocol.api import ApiKey
from headrace.protocol.codec import encode_element
from headrace.security.authorization import Operation, ResourceType, access_for

OF_TOPIC = access_for(ApiKey.DESCRIBE_CONFIGS, ResourceType.TOPIC, Operation.DESCRIBE_CONFIGS)
OF_GROUP = access_for(ApiKey.DESCRIBE_CONFIGS, ResourceType.GROUP, Operation.DESCRIBE_CONFIGS)
OF_CLUSTER = access_for(ApiKey.DESCRIBE_CONFIGS, ResourceType.CLUSTER, Operation.DESCRIBE_CONFIGS)


async def handle_describe_configs(request: DescribeConfigsRequest, call: RequestContext) -> DescribeConfigsResponse:
    results: list[bytes] = []

    def describe_each() -> Iterator[None]:
        for resource in request.resources:
            result = _result(resource, request, call)
            results.append(encode_element(ApiKey.DESCRIBE_CONFIGS, call.api_version, "results", result))
            yield

    await run_in_slices(describe_each())
    encoded = cast(tuple[DescribeConfigsResult, ...], tuple(results))
    return DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=encoded)


def _result(
    resource: DescribeConfigsResource, request: DescribeConfigsRequest, call: RequestContext
) -> DescribeConfigsResult:
    error, message = NO_ERROR, None
    rows: tuple[DescribeConfigsResourceResult, ...] = ()
    try:
        asked = _asked(_described(resource, call), resource)
        rows = tuple(_row(row, request) for row in asked)
    except HeadraceError as refusal:
        error, message = error_of(refusal)
    return DescribeConfigsResult(
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=rows,
    )


def _described(resource: DescribeConfigsResource, call: RequestContext) -> Iterable[ConfigRow]:
    match resource.resource_type:
        case ConfigType.TOPIC:
            return _of_topic(resource.resource_name, call)
        case ConfigType.BROKER:
            _check_cluster(call)
            return _of_broker(resource.resource_name, call)
        case ConfigType.BROKER_LOGGER:
            _check_cluster(call)
            return _of_loggers(resource.resource_name, call)
        case ConfigType.GROUP:
            return _of_group(resource.resource_name, call)
        case other:
            raise RequestError(f"there are no configs on resources of type {other}")


def _asked(rows: Iterable[ConfigRow], resource: DescribeConfigsResource) -> Iterable[ConfigRow]:
    if not resource.configuration_keys:
        return rows
    wanted = set(resource.configuration_keys)
    return [row for row in rows if row.name in wanted]


def _check_cluster(call: RequestContext) -> None:
    if not allows(call, OF_CLUSTER):
        raise NotAuthorized("Cluster authorization failed.")


def _of_topic(name: str, call: RequestContext) -> Iterable[ConfigRow]:
    if not allows(call, OF_TOPIC, name):
        raise TopicDenied("Topic authorization failed.")
    check_topic_name(name)
    topic = call.broker.image.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name}")
    return describe_topic(topic.configs, call.broker.controller.layers())


def _of_group(name: str, call: RequestContext) -> Iterable[ConfigRow]:
    if not allows(call, OF_GROUP, name):
        raise GroupDenied("Group authorization failed.")
    if not name:
        raise RequestError("a group has a name")
    return describe_group(call.broker.image.group_configs.get(name, {}), call.broker.controller.layers())


def _of_broker(name: str, call: RequestContext) -> Iterable[ConfigRow]:
    if name == CLUSTER_DEFAULT:
        return describe_cluster_default(call.broker.image)
    _check_is_us(name, call)
    return describe_broker(call.broker.controller.layers())


def _of_loggers(name: str, call: RequestContext) -> Iterable[ConfigRow]:
    _check_is_us(name, call)
    return [
        ConfigRow(
            name=logger,
            value=level,
            source=ConfigSource.DYNAMIC_BROKER_LOGGER,
            read_only=False,
            sensitive=False,
            synonyms=(),
            type=ValueType.STRING,
            doc="The level from which on this logger writes: FATAL, ERROR, WARN, INFO, DEBUG or TRACE.",
        )
        for logger, level in log_levels().items()
    ]


def _check_is_us(name: str, call: RequestContext) -> None:
    """Raises RequestError unless `name` is this broker: tools request each broker's configs from that broker."""
    ours = str(call.broker.node_id)
    if name != ours:
        raise RequestError(f"this is broker {ours}; it cannot describe {name!r}")


def _row(row: ConfigRow, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = row.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=row.name,
        value=row.value,
        read_only=row.read_only,
        config_source=i8(row.source),
        is_sensitive=row.sensitive,
        synonyms=tuple(
            DescribeConfigsSynonym(name=one.name, value=one.value, source=i8(one.source)) for one in synonyms
        ),
        config_type=i8(row.type),
        documentation=row.doc if request.include_documentation else None,
    )


DESCRIBE_CONFIGS = access_for(ApiKey.LIST_CONFIG_RESOURCES, ResourceType.CLUSTER, Operation.DESCRIBE_CONFIGS)

CLIENT_METRICS = 16
ALL_TYPES = (ConfigType.TOPIC, ConfigType.BROKER, ConfigType.BROKER_LOGGER, CLIENT_METRICS, ConfigType.GROUP)


async def handle_list_config_resources(
    request: ListConfigResourcesRequest, call: RequestContext
) -> ListConfigResourcesResponse:
    # Version 0 has another name (ListClientMetricsResources) and lists client metrics only.
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


def _names(kind: int, image: MetadataImage) -> Iterable[str]:
    match kind:
        case ConfigType.TOPIC:
            return image.topics
        case ConfigType.BROKER | ConfigType.BROKER_LOGGER:
            return map(str, sorted(image.brokers))
        case ConfigType.GROUP:
            return sorted(image.group_configs)
        case _:
            return ()  # client metrics have no configs in headrace
