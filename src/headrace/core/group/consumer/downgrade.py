"""Downgrade of a consumer group: its last consumer-protocol member has left, and its classic-protocol members stay.

They keep their partitions until they have rejoined and the new group leader has assigned partitions.
"""

from typing import Any

from headrace.core.coordinator import CoordinatorTime, Decision
from headrace.core.group.classic.rebalance import ClassicRebalance as ClassicDraft
from headrace.core.group.classic.rebalance import chosen_protocol
from headrace.core.group.consumer.consumer_group import ConsumerGroup
from headrace.core.group.consumer.consumer_protocol import write_assignment
from headrace.core.group.consumer.model import GroupEpoch, TargetEpoch
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.core.group.consumer.update import ConsumerGroupUpdate
from headrace.core.group.model import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicGroup,
    GroupCoordinatorConfig,
    GroupState,
    Member,
    Protocol,
)

CAUSE = "the last member with the consumer protocol left"


def convert_to_classic_group(draft: ConsumerGroupUpdate, topics: Topics, now: CoordinatorTime) -> Decision[Any] | None:
    """Returns the decision that converts the group to a classic one after the draft.

    Returns None if it stays a consumer group.
    """
    group = draft.group
    if not group.subscriptions or any(one.classic is None for one in group.subscriptions.values()):
        return None
    members = _members(group, topics)
    protocol = chosen_protocol(members.values())
    if protocol is None:
        return None  # no common protocol: the broker continues to assign
    classic = ClassicGroup(
        group_id=group.group_id,
        state=GroupState.STABLE,
        state_since_ms=now.wall_ms,
        generation=group.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol=protocol,
        leader=None,  # no leader yet, also for a coordinator that loads the group in this state
        members=members,
    )
    forgotten = ConsumerGroupUpdate(group)
    for member_id in members:
        forgotten.remove_member(member_id)
    forgotten.add(TargetEpoch(group.group_id, None))
    forgotten.add(GroupEpoch(group.group_id, None))
    begun = ClassicDraft(classic, now, GroupCoordinatorConfig())
    for member in members.values():
        begun.reschedule_heartbeat(member)
    begun.prepare_rebalance(CAUSE)
    begun.is_written = True
    decision = begun.decision()
    return Decision(facts=(*forgotten.facts, *decision.facts), timers=(*forgotten.timers, *decision.timers))


def _members(group: ConsumerGroup, topics: Topics) -> dict[str, Member]:
    members = {}
    for member_id, one in group.subscriptions.items():
        assert one.classic is not None, "only classic members are left"
        members[member_id] = Member(
            member_id=member_id,
            instance_id=one.instance_id,
            client_id=one.client_id,
            client_host=one.client_host,
            session_timeout_ms=one.classic.session_timeout_ms,
            rebalance_timeout_ms=one.rebalance_timeout_ms,
            protocols=tuple(Protocol(*protocol) for protocol in one.classic.protocols),
            assignment=write_assignment(group.holding(member_id).assigned, topics),
        )
    return members
