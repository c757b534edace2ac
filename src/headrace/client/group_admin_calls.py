"""What operators ask about groups: which there are, who is in them, and to delete one.

Decides the shape of each request, and that a group nobody has heard of is refused rather than described as dead.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.client.coordinators import Coordinators
from headrace.client.refusals import Refused
from headrace.model.errors import ErrorCode

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


async def list_groups(coordinators: Coordinators, states: Sequence[str] = ()) -> list[ListedGroup]:
    """Those of every broker, by name."""
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


async def describe_group(coordinators: Coordinators, group_id: str) -> DescribedGroup:
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
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
    members = (
        DescribedMember(one.member_id, one.group_instance_id, one.client_id, one.client_host, one.member_assignment)
        for one in row.members
    )
    return DescribedGroup(row.group_state, row.protocol_type, row.protocol_data, tuple(members))


async def delete_group(coordinators: Coordinators, group_id: str) -> None:
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
    from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
    from kio.schema.types import GroupId

    request = DeleteGroupsRequest(groups_names=(GroupId(group_id),))

    async def attempt(broker_id: int) -> None:
        (row,) = (await coordinators.cluster.call_broker(broker_id, request, DeleteGroupsResponse)).results
        _check(row.error_code, group_id)

    await coordinators.ask(group_id, attempt, repeatable=False)  # the group would be missing


def _check(code: Any, about: str) -> None:
    if code:
        raise Refused(int(code), f"{about}: {code.name.upper()}")
