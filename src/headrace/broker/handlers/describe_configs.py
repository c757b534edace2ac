"""DescribeConfigs: every config of a resource, who set it, what else it could have been, and what it means.

A tool that asks about a thousand topics gets forty thousand rows. They are made and encoded a resource at a time,
so that other clients are served in between.
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

from headrace.broker.call import Call
from headrace.broker.handlers.kafka_types import NO_ERROR, NO_THROTTLE, error_of, i8
from headrace.broker.handlers.shared import allows
from headrace.broker.log_levels import log_levels
from headrace.broker.slices import in_slices
from headrace.core.cluster.config_view import (
    CLUSTER_DEFAULT,
    ConfigRow,
    ConfigSource,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from headrace.core.cluster.names import check_topic_name
from headrace.core.cluster.values import ResourceType as ConfigType
from headrace.model.configs import ConfigType as ValueType
from headrace.model.errors import GroupDenied, HeadraceError, NotAuthorized, RequestError, TopicDenied, UnknownTopic
from headrace.protocol.api import ApiKey
from headrace.protocol.kafka_messages import encode_element
from headrace.security.access import Operation, ResourceType, access_for

OF_TOPIC = access_for(ApiKey.DESCRIBE_CONFIGS, ResourceType.TOPIC, Operation.DESCRIBE_CONFIGS)
OF_GROUP = access_for(ApiKey.DESCRIBE_CONFIGS, ResourceType.GROUP, Operation.DESCRIBE_CONFIGS)
OF_CLUSTER = access_for(ApiKey.DESCRIBE_CONFIGS, ResourceType.CLUSTER, Operation.DESCRIBE_CONFIGS)


async def handle(request: DescribeConfigsRequest, call: Call) -> DescribeConfigsResponse:
    results: list[bytes] = []

    def describe_each() -> Iterator[None]:
        for resource in request.resources:
            result = _result(resource, request, call)
            results.append(encode_element(ApiKey.DESCRIBE_CONFIGS, call.api_version, "results", result))
            yield

    await in_slices(describe_each())
    encoded = cast(tuple[DescribeConfigsResult, ...], tuple(results))
    return DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=encoded)


def _result(resource: DescribeConfigsResource, request: DescribeConfigsRequest, call: Call) -> DescribeConfigsResult:
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


def _described(resource: DescribeConfigsResource, call: Call) -> Iterable[ConfigRow]:
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


def _check_cluster(call: Call) -> None:
    if not allows(call, OF_CLUSTER):
        raise NotAuthorized("Cluster authorization failed.")


def _of_topic(name: str, call: Call) -> Iterable[ConfigRow]:
    if not allows(call, OF_TOPIC, name):
        raise TopicDenied("Topic authorization failed.")
    check_topic_name(name)
    topic = call.broker.image.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"there is no topic {name}")
    return describe_topic(topic.configs, call.broker.controller.layers())


def _of_group(name: str, call: Call) -> Iterable[ConfigRow]:
    if not allows(call, OF_GROUP, name):
        raise GroupDenied("Group authorization failed.")
    if not name:
        raise RequestError("a group has a name")
    return describe_group(call.broker.image.group_configs.get(name, {}), call.broker.controller.layers())


def _of_broker(name: str, call: Call) -> Iterable[ConfigRow]:
    if name == CLUSTER_DEFAULT:
        return describe_cluster_default(call.broker.image)
    _check_is_us(name, call)
    return describe_broker(call.broker.controller.layers())


def _of_loggers(name: str, call: Call) -> Iterable[ConfigRow]:
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


def _check_is_us(name: str, call: Call) -> None:
    """A broker knows only its own configs; tools ask each broker about itself."""
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
