"""Membership checks of a heartbeat: finds, admits or replaces the member, and fences outdated epochs."""

from headrace.core.group.consumer.assignment import is_within
from headrace.core.group.consumer.consumer_group import ConsumerGroup
from headrace.core.group.consumer.model import (
    JOINING,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    NEWCOMER,
    ConsumerGroupConfig,
    CurrentAssignment,
    Heartbeat,
    HoldingOf,
    MemberSubscribed,
    RegexResolved,
    Subscription,
    TargetOf,
)
from headrace.core.group.consumer.update import ConsumerGroupUpdate
from headrace.core.group.errors import FencedInstance, FencedMemberEpoch, GroupFull, UnknownMember, UnreleasedInstance


def admit(draft: ConsumerGroupUpdate, request: Heartbeat, rules: ConsumerGroupConfig) -> CurrentAssignment:
    """Returns the member's current assignment. Raises if it is fenced; replaces a static member that rejoins."""
    group = draft.group
    known = request.member_id in group.subscriptions
    previous_id = group.instances.get(request.instance_id) if request.instance_id is not None else None
    if request.epoch != JOINING:
        holding = _present(group, request, previous_id)
        _check_epoch(holding, request)
        return holding
    if previous_id is not None:
        return _come_back(draft, request, previous_id)
    if not known and len(group.subscriptions) >= rules.members_max:
        raise GroupFull(f"group {group.group_id} has {rules.members_max} members, and no more are allowed")
    if known and request.classic is not None:
        return group.holding(request.member_id)  # classic-protocol members rejoin at every rebalance
    # A known member that joins again has lost its partitions: it restarts with the assignment that the group has for
    # it.
    return _restarted(group.holding(request.member_id)) if known else NEWCOMER


def leaver(group: ConsumerGroup, request: Heartbeat) -> None:
    """Raises unless the member that leaves is in the group."""
    previous_id = group.instances.get(request.instance_id) if request.instance_id is not None else None
    _present(group, request, previous_id)


def _present(group: ConsumerGroup, request: Heartbeat, previous_id: str | None) -> CurrentAssignment:
    if request.instance_id is not None:
        if previous_id is None:
            raise UnknownMember(f"group {group.group_id} has no instance {request.instance_id}")
        if previous_id != request.member_id:
            raise FencedInstance(f"instance {request.instance_id} is member {previous_id} now")
    if request.member_id not in group.subscriptions:
        raise UnknownMember(f"group {group.group_id} has no member {request.member_id}")
    return group.holding(request.member_id)


def _check_epoch(holding: CurrentAssignment, request: Heartbeat) -> None:
    if request.epoch == holding.epoch:
        return
    # The response with the new epoch may have been lost. The member then still owns part of its assignment.
    answer_lost = request.epoch == holding.previous_epoch and request.epoch < holding.epoch
    if answer_lost and request.owned is not None and is_within(request.owned, holding.assigned):
        return
    raise FencedMemberEpoch(
        f"member {request.member_id} is at epoch {holding.epoch}, not {request.epoch}: "
        "it must give up its partitions and join again"
    )


def _come_back(draft: ConsumerGroupUpdate, request: Heartbeat, previous_id: str) -> CurrentAssignment:
    """Replaces a static member's previous id, if that one has left or is the same."""
    group = draft.group
    before = group.holding(previous_id)
    is_away = before.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH
    # A classic-protocol member cannot leave temporarily: its successor replaces it at any time.
    is_classic = group.subscriptions[previous_id].classic is not None
    if not (is_away or is_classic or previous_id == request.member_id):
        raise UnreleasedInstance(f"instance {request.instance_id} is still held by member {previous_id}")
    subscription, target = group.subscriptions[previous_id], group.target(previous_id)
    holding = _restarted(before)
    if previous_id != request.member_id:
        _replace(draft, previous_id, request.member_id, subscription, holding)
        draft.add(TargetOf(group.group_id, request.member_id, target))
    return holding


def _replace(
    draft: ConsumerGroupUpdate, old_id: str, new_id: str, subscription: Subscription, holding: CurrentAssignment
) -> None:
    group_id = draft.group.group_id
    regex, resolved = subscription.regex, draft.group.regexes.get(subscription.regex or "")
    draft.remove_member(old_id)
    draft.add(MemberSubscribed(group_id, new_id, subscription))
    draft.add(HoldingOf(group_id, new_id, holding))
    if regex and resolved is not None and regex not in draft.group.regexes:
        draft.add(RegexResolved(group_id, regex, resolved))


def _restarted(holding: CurrentAssignment) -> CurrentAssignment:
    return CurrentAssignment(assigned=holding.assigned)
