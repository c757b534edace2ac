"""Topic and group administration by raw requests.

Topics are created, deleted and extended through the controller. Groups can be listed, described and deleted. A group
that no broker has is an error (GROUP_ID_NOT_FOUND), where Kafka describes it as dead.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from headrace.client.aio.client import Cluster, CoordinatorCache
from headrace.client.core.errors import RETRIABLE_UNSENT_CODES, KafkaApiError
from headrace.client.sync.configs import ConfigSource, ResourceType
from headrace.model.errors import ErrorCode

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
        _check_topic(row)
        return row

    row = await cluster.patiently(attempt, RETRIABLE_UNSENT_CODES)
    cluster.forget(name)
    return Created(str(row.topic_id or ""), row.num_partitions, row.replication_factor)


async def delete(cluster: Cluster, name: str) -> None:
    from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
    from kio.schema.delete_topics.v5.response import DeleteTopicsResponse
    from kio.schema.types import TopicName

    request = DeleteTopicsRequest(topic_names=(TopicName(name),), timeout=_timeout(cluster))

    async def attempt() -> None:
        (row,) = (await _ask_controller(cluster, request, DeleteTopicsResponse)).responses
        _check_topic(row)

    await cluster.patiently(attempt, RETRIABLE_UNSENT_CODES)
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
        _check_topic(row)

    await cluster.patiently(attempt, RETRIABLE_UNSENT_CODES)
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
        (row,) = (await cluster.call_any_broker(request, DescribeConfigsResponse)).results
        _check_topic(row)
        return row

    row = await cluster.patiently(attempt)
    own = ConfigSource.TOPIC
    return [ConfigInForce(one.name, one.value, one.config_source != own) for one in row.configs]


async def _ask_controller(cluster: Cluster, request: Any, response_type: Any) -> Any:
    return await cluster.call_broker(await cluster.controller(), request, response_type)


def _check_topic(row: Any) -> None:
    if row.error_code:
        raise KafkaApiError(int(row.error_code), row.error_message or row.error_code.name.upper())


def _timeout(cluster: Cluster) -> Any:
    from kio.static.primitive import i32Timedelta

    return i32Timedelta.parse(timedelta(seconds=cluster.request_timeout_s))


_DEAD = "Dead"


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str


class DescribedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: bytes


class DescribedGroup(NamedTuple):
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]


async def list_groups(coordinators: CoordinatorCache, states: Sequence[str] = ()) -> list[ListedGroup]:
    """Returns the groups of all brokers, sorted by name."""
    from kio.schema.list_groups.v4.request import ListGroupsRequest
    from kio.schema.list_groups.v4.response import ListGroupsResponse

    cluster = coordinators.cluster
    request = ListGroupsRequest(states_filter=tuple(states))

    async def of(broker_id: int) -> list[ListedGroup]:
        async def attempt() -> list[ListedGroup]:
            answer = await cluster.call_broker(broker_id, request, ListGroupsResponse)
            _check(answer.error_code, f"broker {broker_id}")
            return [ListedGroup(one.group_id, one.protocol_type, one.group_state) for one in answer.groups]

        return await cluster.patiently(attempt)

    await cluster.patiently(cluster.refresh_brokers)
    found = await asyncio.gather(*(of(broker_id) for broker_id in await cluster.brokers()))
    return sorted(set().union(*found))


async def describe_group(coordinators: CoordinatorCache, group_id: str) -> DescribedGroup:
    from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
    from kio.schema.describe_groups.v5.response import DescribeGroupsResponse
    from kio.schema.types import GroupId

    request = DescribeGroupsRequest(groups=(GroupId(group_id),), include_authorized_operations=False)

    async def attempt(broker_id: int) -> Any:
        (row,) = (await coordinators.cluster.call_broker(broker_id, request, DescribeGroupsResponse)).groups
        _check(row.error_code, group_id)
        return row

    row = await coordinators.ask(group_id, attempt)
    if row.group_state == _DEAD:
        raise KafkaApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
    members = (
        DescribedMember(one.member_id, one.group_instance_id, one.client_id, one.client_host, one.member_assignment)
        for one in row.members
    )
    return DescribedGroup(row.group_state, row.protocol_type, row.protocol_data, tuple(members))


async def delete_group(coordinators: CoordinatorCache, group_id: str) -> None:
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
    from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
    from kio.schema.types import GroupId

    request = DeleteGroupsRequest(groups_names=(GroupId(group_id),))

    async def attempt(broker_id: int) -> None:
        (row,) = (await coordinators.cluster.call_broker(broker_id, request, DeleteGroupsResponse)).results
        _check(row.error_code, group_id)

    await coordinators.ask(group_id, attempt, repeatable=False)  # a repeated request would fail with GROUP_ID_NOT_FOUND


def _check(code: Any, about: str) -> None:
    if code:
        raise KafkaApiError(int(code), f"{about}: {code.name.upper()}")
