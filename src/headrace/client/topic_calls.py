"""Creating, growing and deleting topics, and their configs, with Kafka's own requests, from an event loop.

Decides the shape of each request. The controller does the work; whoever is asked passes it on, or says who it is.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from headrace.client.cluster import Cluster
from headrace.client.configs import ConfigSource, ResourceType
from headrace.client.refusals import PASSING_UNSENT, Refused

BROKERS_DEFAULT = -1


class Created(NamedTuple):
    id: str
    partitions: int
    replication_factor: int


async def create(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = BROKERS_DEFAULT,
    replication_factor: int = BROKERS_DEFAULT,
    configs: Mapping[str, str],
    validate_only: bool = False,
) -> Created:
    from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
    from kio.schema.create_topics.v7.response import CreateTopicsResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import i16, i32

    topic = CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(partitions),
        replication_factor=i16(replication_factor),
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
    )
    request = CreateTopicsRequest(topics=(topic,), timeout=_timeout(cluster), validate_only=validate_only)

    async def attempt() -> Any:
        (row,) = (await _ask_controller(cluster, request, CreateTopicsResponse)).topics
        _check(row)
        return row

    row = await cluster.patiently(attempt, PASSING_UNSENT)
    cluster.forget(name)
    return Created(str(row.topic_id or ""), row.num_partitions, row.replication_factor)


async def delete(cluster: Cluster, name: str) -> None:
    from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
    from kio.schema.delete_topics.v5.response import DeleteTopicsResponse
    from kio.schema.types import TopicName

    request = DeleteTopicsRequest(topic_names=(TopicName(name),), timeout=_timeout(cluster))

    async def attempt() -> None:
        (row,) = (await _ask_controller(cluster, request, DeleteTopicsResponse)).responses
        _check(row)

    await cluster.patiently(attempt, PASSING_UNSENT)
    cluster.forget(name)


async def grow(cluster: Cluster, name: str, total_count: int, *, validate_only: bool = False) -> None:
    from kio.schema.create_partitions.v2.request import CreatePartitionsRequest, CreatePartitionsTopic
    from kio.schema.create_partitions.v2.response import CreatePartitionsResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import i32

    topic = CreatePartitionsTopic(name=TopicName(name), count=i32(total_count), assignments=None)
    request = CreatePartitionsRequest(topics=(topic,), timeout=_timeout(cluster), validate_only=validate_only)

    async def attempt() -> None:
        (row,) = (await _ask_controller(cluster, request, CreatePartitionsResponse)).results
        _check(row)

    await cluster.patiently(attempt, PASSING_UNSENT)
    cluster.forget(name)


class ConfigInForce(NamedTuple):
    name: str
    value: str | None
    is_default: bool


async def configs_of(cluster: Cluster, name: str) -> list[ConfigInForce]:
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
    from kio.schema.describe_configs.v4.response import DescribeConfigsResponse
    from kio.static.primitive import i8

    resource = DescribeConfigsResource(
        resource_type=i8(ResourceType.TOPIC), resource_name=name, configuration_keys=None
    )

    request = DescribeConfigsRequest(resources=(resource,))

    async def attempt() -> Any:
        (row,) = (await cluster.call_anyone(request, DescribeConfigsResponse)).results
        _check(row)
        return row

    row = await cluster.patiently(attempt)
    own = ConfigSource.TOPIC
    return [ConfigInForce(one.name, one.value, one.config_source != own) for one in row.configs]


async def _ask_controller(cluster: Cluster, request: Any, response_type: Any) -> Any:
    return await cluster.call_broker(await cluster.controller(), request, response_type)


def _check(row: Any) -> None:
    if row.error_code:
        raise Refused(int(row.error_code), row.error_message or row.error_code.name.upper())


def _timeout(cluster: Cluster) -> Any:
    from kio.static.primitive import i32Timedelta

    return i32Timedelta.parse(timedelta(seconds=cluster.request_timeout_s))
