"""Upgrade of a classic group to the consumer protocol, while its members continue to consume.

Classic-protocol members stay members (`classic_members.py`) and keep their partitions. Each of them can change its
protocol whenever it restarts. The way back is in `downgrade.py`.
"""

from typing import Any

from headrace.core.coordinator import Answer, CoordinatorTime, Decision, RequestId, Timer, merged
from headrace.core.group.classic.rebalance import FAMILY as CLASSIC
from headrace.core.group.classic.rebalance import JOIN, PENDING, SESSION, SYNC
from headrace.core.group.consumer.consumer_group import ConsumerGroup
from headrace.core.group.consumer.consumer_protocol import read_assignment, read_subscription
from headrace.core.group.consumer.heartbeat import MayDescribe
from headrace.core.group.consumer.manager import consumer_groups
from headrace.core.group.consumer.model import (
    JOINING,
    ClassicMemberMetadata,
    CurrentAssignment,
    GroupEpoch,
    Heartbeat,
    HoldingOf,
    MemberSubscribed,
    Subscription,
    TargetEpoch,
    TargetOf,
    session_timer,
)
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.core.group.consumer.update import ConsumerGroupUpdate
from headrace.core.group.coordinator_shard import GroupCoordinatorShard
from headrace.core.group.errors import GroupNotFound, RebalanceInProgress
from headrace.core.group.group_manager import timer_name
from headrace.core.group.model import CONSUMER_PROTOCOL_TYPE, ClassicGroup, Member
from headrace.model.errors import ProtocolError


def report(
    machine: GroupCoordinatorShard,
    request: Heartbeat,
    may_describe: MayDescribe,
    ticket: RequestId,
    now: CoordinatorTime,
) -> Decision[Any]:
    """Handles ConsumerGroupHeartbeat, also for a group that is still classic."""
    groups = consumer_groups(machine)
    classic = machine.classic.get(request.group_id)
    if classic is None:
        return groups.report(request, may_describe, ticket, now)
    if request.epoch != JOINING:
        raise GroupNotFound(f"group {request.group_id} uses the classic protocol")
    unused_ids = [Timer(timer_name(CLASSIC, PENDING, request.group_id, one), None) for one in classic.pending]
    forgotten: Decision[Any] = Decision(facts=machine.classic.forget(request.group_id), timers=unused_ids)
    if machine.classic.is_empty(request.group_id):
        return merged([forgotten, groups.report(request, may_describe, ticket, now)])
    if not groups.rules_of(request.group_id).may_upgrade:
        raise GroupNotFound(f"group {request.group_id} uses the classic protocol, and keeps it")
    draft = _upgraded(classic, groups.topics)
    changed: Decision[Any] = Decision(facts=draft.facts, answers=_called_off(classic), timers=_new_timers(classic, now))
    return merged([forgotten, changed, groups.report(request, may_describe, ticket, now, draft.group)])


def _upgraded(classic: ClassicGroup, topics: Topics) -> ConsumerGroupUpdate:
    """Returns a consumer group with the same members and partitions."""
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise GroupNotFound(f"group {classic.group_id} is not a group of consumers")
    draft = ConsumerGroupUpdate(ConsumerGroup(classic.group_id))
    epoch = max(classic.generation, 1)
    for member in classic.members.values():
        draft.add(MemberSubscribed(classic.group_id, member.member_id, _subscription(classic, member)))
    draft.add(GroupEpoch(classic.group_id, epoch, topics.hash_of(draft.group.subscribed_topics())))
    for member in classic.members.values():
        assigned = read_assignment(member.assignment, topics)
        draft.add(TargetOf(classic.group_id, member.member_id, assigned))
        draft.add(HoldingOf(classic.group_id, member.member_id, CurrentAssignment(epoch, epoch, assigned=assigned)))
    draft.add(TargetEpoch(classic.group_id, epoch))
    return draft


def _subscription(classic: ClassicGroup, member: Member) -> Subscription:
    metadata = member.metadata_for(classic.protocol) or member.protocols[0].metadata
    try:
        said = read_subscription(metadata)
    except ProtocolError:
        raise GroupNotFound(f"group {classic.group_id} has members that are no consumers") from None
    return Subscription(
        topics=said.topics,
        instance_id=member.instance_id,
        rack_id=said.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(
            member.session_timeout_ms, tuple((one.name, one.metadata) for one in member.protocols)
        ),
    )


def _called_off(classic: ClassicGroup) -> list[Answer]:
    """Rejects the waiting JoinGroup and SyncGroup requests.

    Their members rejoin and become members of the consumer group.
    """
    error = RebalanceInProgress("the group changes its protocol")
    tickets = [ticket for member in classic.members.values() for ticket in (member.joining, member.syncing)]
    return [Answer(ticket, error) for ticket in tickets if ticket is not None]


def _new_timers(classic: ClassicGroup, now: CoordinatorTime) -> list[Timer]:
    group_id = classic.group_id
    timers = [Timer(timer_name(CLASSIC, kind, group_id), None) for kind in (JOIN, SYNC)]
    for member in classic.members.values():
        timers.append(Timer(timer_name(CLASSIC, SESSION, group_id, member.member_id), None))
        timers.append(Timer(session_timer(group_id, member.member_id), now + member.session_timeout_ms))
    return timers
