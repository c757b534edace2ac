"""Requests of the classic group protocol, as Kafka's clients send them to a coordinator.

Raises KafkaApiError for error codes in responses. Callers keep track of memberships; `client.py` finds the
coordinator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from headrace.client.aio.client import CoordinatorCache
from headrace.client.core.errors import KafkaApiError
from headrace.model.errors import ErrorCode

NO_GENERATION = -1
# A coordinator responds to a join after its rebalance timeout; this much later the response is considered lost.
GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Identity of a member. Without a generation: a client that is no member, for groups without members."""

    group_id: str
    member_id: str = ""
    generation_id: int = NO_GENERATION
    group_instance_id: str | None = None


class GroupMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    generation_id: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    members: tuple[GroupMember, ...]  # only for the leader


class Protocol(NamedTuple):
    name: str
    metadata: bytes


async def join(
    coordinators: CoordinatorCache,
    who: Membership,
    protocol_type: str,
    protocols: Sequence[Protocol],
    *,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
) -> Joined:
    """Joins the group. A new member first receives an id and then joins with it (KIP-394), within one call."""
    member_id = who.member_id
    for _ in range(2):
        answer = await _join_once(
            coordinators, who, member_id, protocol_type, protocols, session_timeout_ms, rebalance_timeout_ms
        )
        if int(answer.error_code) != ErrorCode.MEMBER_ID_REQUIRED:
            break
        member_id = answer.member_id
    _check(answer.error_code, who.group_id)
    members = tuple(GroupMember(one.member_id, one.group_instance_id, one.metadata) for one in answer.members)
    return Joined(
        answer.generation_id,
        answer.protocol_type or protocol_type,
        answer.protocol_name or "",
        answer.leader,
        answer.member_id,
        members,
    )


async def _join_once(
    coordinators: CoordinatorCache,
    who: Membership,
    member_id: str,
    protocol_type: str,
    protocols: Sequence[Protocol],
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
) -> Any:
    from kio.schema.join_group.v7.request import JoinGroupRequest, JoinGroupRequestProtocol
    from kio.schema.join_group.v7.response import JoinGroupResponse
    from kio.schema.types import GroupId

    request = JoinGroupRequest(
        group_id=GroupId(who.group_id),
        session_timeout=_milliseconds(session_timeout_ms),
        rebalance_timeout=_milliseconds(rebalance_timeout_ms),
        member_id=member_id,
        group_instance_id=who.group_instance_id,
        protocol_type=protocol_type,
        protocols=tuple(JoinGroupRequestProtocol(name=one.name, metadata=one.metadata) for one in protocols),
    )
    wait_s = rebalance_timeout_ms / 1000 + GRACE_S

    async def attempt(broker_id: int) -> Any:
        answer = await coordinators.cluster.call_broker(broker_id, request, JoinGroupResponse, wait_s)
        if int(answer.error_code) != ErrorCode.MEMBER_ID_REQUIRED:  # the response carries the member id
            _check(answer.error_code, who.group_id)
        return answer

    # A join without an id adds a member whose id is in the lost response, and the group would wait for it.
    return await coordinators.ask(who.group_id, attempt, repeatable=bool(member_id))


async def sync(
    coordinators: CoordinatorCache,
    who: Membership,
    assignments: Mapping[str, bytes],
    *,
    protocol_type: str | None = None,
    protocol_name: str | None = None,
    wait_s: float,
) -> bytes:
    """Returns this member's assignment; waits until the leader has sent the assignment of all members."""
    from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment
    from kio.schema.sync_group.v5.response import SyncGroupResponse
    from kio.schema.types import GroupId
    from kio.static.primitive import i32

    request = SyncGroupRequest(
        group_id=GroupId(who.group_id),
        generation_id=i32(who.generation_id),
        member_id=who.member_id,
        group_instance_id=who.group_instance_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=member, assignment=share) for member, share in assignments.items()
        ),
    )
    return (await _call(coordinators, who, request, SyncGroupResponse, wait_s)).assignment  # type: ignore[no-any-return]


async def heartbeat(coordinators: CoordinatorCache, who: Membership) -> None:
    from kio.schema.heartbeat.v4.request import HeartbeatRequest
    from kio.schema.heartbeat.v4.response import HeartbeatResponse
    from kio.schema.types import GroupId
    from kio.static.primitive import i32

    request = HeartbeatRequest(
        group_id=GroupId(who.group_id),
        generation_id=i32(who.generation_id),
        member_id=who.member_id,
        group_instance_id=who.group_instance_id,
    )
    await _call(coordinators, who, request, HeartbeatResponse)


async def leave(coordinators: CoordinatorCache, who: Membership) -> None:
    from kio.schema.leave_group.v4.request import LeaveGroupRequest, MemberIdentity
    from kio.schema.leave_group.v4.response import LeaveGroupResponse
    from kio.schema.types import GroupId

    identity = MemberIdentity(member_id=who.member_id, group_instance_id=who.group_instance_id)
    request = LeaveGroupRequest(group_id=GroupId(who.group_id), members=(identity,))
    # a repeated request would fail with UNKNOWN_MEMBER_ID
    answer = await _call(coordinators, who, request, LeaveGroupResponse, repeatable=False)
    for member in answer.members:
        _check(member.error_code, who.group_id)


class Offset(NamedTuple):
    topic: str
    partition: int
    offset: int
    metadata: str = ""


async def commit(coordinators: CoordinatorCache, who: Membership, offsets: Iterable[Offset]) -> None:
    """Commits all offsets; raises the first error."""
    from kio.schema.offset_commit.v8.request import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )
    from kio.schema.offset_commit.v8.response import OffsetCommitResponse
    from kio.schema.types import GroupId, TopicName
    from kio.static.primitive import i32, i64

    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for one in offsets:
        row = OffsetCommitRequestPartition(
            partition_index=i32(one.partition), committed_offset=i64(one.offset), committed_metadata=one.metadata
        )
        topics.setdefault(one.topic, []).append(row)
    request = OffsetCommitRequest(
        group_id=GroupId(who.group_id),
        generation_id_or_member_epoch=i32(who.generation_id),
        member_id=who.member_id,
        group_instance_id=who.group_instance_id,
        topics=tuple(
            OffsetCommitRequestTopic(name=TopicName(name), partitions=tuple(rows)) for name, rows in topics.items()
        ),
    )

    async def attempt(broker_id: int) -> None:
        answer = await coordinators.cluster.call_broker(broker_id, request, OffsetCommitResponse)
        for topic in answer.topics:
            for row in topic.partitions:
                _check(row.error_code, f"{who.group_id}, {topic.name}-{row.partition_index}")

    await coordinators.ask(who.group_id, attempt)


async def committed(
    coordinators: CoordinatorCache, group_id: str, wanted: Mapping[str, Sequence[int]] | None = None
) -> list[Offset]:
    """Returns the group's committed offsets of the wanted partitions or of all; -1 for partitions without one."""
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequest, OffsetFetchRequestTopic
    from kio.schema.offset_fetch.v7.response import OffsetFetchResponse
    from kio.schema.types import GroupId, TopicName
    from kio.static.primitive import i32

    topics = None
    if wanted is not None:
        topics = tuple(
            OffsetFetchRequestTopic(name=TopicName(name), partition_indexes=tuple(i32(one) for one in partitions))
            for name, partitions in wanted.items()
        )
    request = OffsetFetchRequest(group_id=GroupId(group_id), topics=topics, require_stable=True)

    async def attempt(broker_id: int) -> list[Offset]:
        answer = await coordinators.cluster.call_broker(broker_id, request, OffsetFetchResponse)
        _check(answer.error_code, group_id)
        found = []
        for topic in answer.topics:
            for row in topic.partitions:
                _check(row.error_code, f"{group_id}, {topic.name}-{row.partition_index}")
                found.append(Offset(topic.name, row.partition_index, row.committed_offset, row.metadata or ""))
        return found

    return await coordinators.ask(group_id, attempt)


async def _call(
    coordinators: CoordinatorCache,
    who: Membership,
    request: Any,
    response_type: Any,
    wait_s: float = 0.0,
    *,
    repeatable: bool = True,
) -> Any:
    async def attempt(broker_id: int) -> Any:
        answer = await coordinators.cluster.call_broker(broker_id, request, response_type, wait_s)
        _check(answer.error_code, who.group_id)
        return answer

    return await coordinators.ask(who.group_id, attempt, repeatable=repeatable)


def _check(code: Any, about: str) -> None:
    if code:
        raise KafkaApiError(int(code), f"{about}: {code.name.upper()}")


def _milliseconds(count: int) -> Any:
    from kio.static.primitive import i32Timedelta

    return i32Timedelta.parse(timedelta(milliseconds=count))
