"""Describes and alters configs of topics, groups, brokers and loggers with Kafka's own requests.

librdkafka supports neither groups nor loggers nor the cluster-wide broker default, nor the documentation of a key.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.client.sync.transport import Connection
from headrace.config.definition import ConfigType


class ResourceType(IntEnum):
    """Kafka's codes of resource types with configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


class ConfigSource(IntEnum):
    """Source of a value, as in DescribeConfigs."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    FILE = 4
    DEFAULT = 5
    LOGGER = 6
    GROUP = 8

    @classmethod
    def of(cls, number: int) -> "ConfigSource":
        return cls(number) if number in cls._value2member_map_ else cls.UNKNOWN


class Operation(IntEnum):
    SET = 0
    DELETE = 1


class Entry(NamedTuple):
    """One key with its effective value."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    type: str
    doc: str


class ConfigError(NamedTuple):
    code: int
    message: str


def describe(
    connection: Connection, kind: ResourceType, name: str, keys: Iterable[str] | None = None
) -> list[Entry] | ConfigError:
    """Returns all keys of a resource, or the requested ones."""
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
    from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
    from kio.static.primitive import i8

    resource = DescribeConfigsResource(
        resource_type=i8(kind),
        resource_name=name,
        configuration_keys=None if keys is None else tuple(keys),
    )
    request = DescribeConfigsRequest(resources=(resource,), include_documentation=True)
    (result,) = connection.call(request, DescribeConfigsResponse).results
    if result.error_code:
        return ConfigError(int(result.error_code), result.error_message or result.error_code.name)
    return [
        Entry(
            config.name,
            config.value,
            ConfigSource.of(config.config_source),
            config.read_only,
            ConfigType(config.config_type).name.lower() if 1 <= config.config_type <= 9 else "unknown",
            config.documentation or "",
        )
        for config in result.configs
    ]


def alter(
    connection: Connection,
    kind: ResourceType,
    name: str,
    wanted: Mapping[str, str],
    unwanted: Iterable[str],
    *,
    validate_only: bool = False,
) -> ConfigError | None:
    """Sets and deletes keys of one resource; other keys are unchanged."""
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )
    from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
    from kio.static.primitive import i8

    changes = [
        AlterableConfig(name=key, config_operation=i8(Operation.SET), value=value) for key, value in wanted.items()
    ] + [AlterableConfig(name=key, config_operation=i8(Operation.DELETE), value=None) for key in unwanted]
    resource = AlterConfigsResource(resource_type=i8(kind), resource_name=name, configs=tuple(changes))
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    (result,) = connection.call(request, IncrementalAlterConfigsResponse).responses
    if result.error_code:
        return ConfigError(int(result.error_code), result.error_message or result.error_code.name)
    return None
