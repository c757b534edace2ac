"""ConsumerGroupHeartbeat: request validation, membership, group epoch, target assignment, reconciliation.

    find or admit the member → update its subscription → bump the group epoch? → new target → reconcile the member

Works on a ConsumerGroupUpdate; changes no group itself. No I/O.
"""

from collections import Counter
from collections.abc import Callable

from headrace.core.coordinator import CoordinatorTime, Timer
from headrace.core.group.consumer.assignment import reconciled
from headrace.core.group.consumer.assignors import ASSIGNORS, Candidate
from headrace.core.group.consumer.consumer_group import ConsumerGroup
from headrace.core.group.consumer.members import admit, leaver
from headrace.core.group.consumer.model import (
    JOINING,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    LEAVING,
    NO_PARTITIONS,
    ConsumerGroupConfig,
    CurrentAssignment,
    Heartbeat,
    HeartbeatReply,
    HoldingOf,
    MemberState,
    MemberSubscribed,
    Partitions,
    RegexResolved,
    ResolvedTopics,
    Subscription,
    TargetEpoch,
    TargetOf,
    rebalance_timer,
    session_timer,
)
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.core.group.consumer.update import ConsumerGroupUpdate
from headrace.core.group.errors import GroupNotFound, UnsupportedAssignor
from headrace.core.regex import matcher
from headrace.model.errors import RequestError

# Keys of the log encode a name's length in 15 bits, and a character takes up to four bytes.
NAME_CHARS_MAX = 8_000
UNCHANGED = -1  # the member sends the value only when it changes


def check_form(request: Heartbeat, rules: ConsumerGroupConfig) -> None:
    for name, value in (
        ("the group id", request.group_id),
        ("the member id", request.member_id),
        ("the instance id", request.instance_id),
        ("the rack id", request.rack_id),
    ):
        _refuse_if(value == "", f"{name} is empty")
        _refuse_if(
            value is not None and len(value) > NAME_CHARS_MAX, f"{name} has more than {NAME_CHARS_MAX} characters"
        )
    _refuse_if(request.epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH, f"there is no member epoch {request.epoch}")
    _refuse_if(
        request.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH and request.instance_id is None,
        "only a static member leaves for a while, and this one names no instance id",
    )
    _refuse_if(request.rebalance_timeout_ms < UNCHANGED, f"a rebalance timeout of {request.rebalance_timeout_ms} ms")
    if request.epoch == JOINING:
        _check_joining(request)
    if request.assignor is not None and request.assignor not in rules.assignors:
        raise UnsupportedAssignor(f"there is no assignor {request.assignor!r}, only {', '.join(rules.assignors)}")
    if request.regex and request.epoch != LEAVING:
        matcher(request.regex)


def _check_joining(request: Heartbeat) -> None:
    _refuse_if(request.rebalance_timeout_ms == UNCHANGED, "a member that joins names its rebalance timeout")
    _refuse_if(request.owned is None or bool(request.owned), "a member that joins owns no partitions")
    _refuse_if(request.topics is None and not request.regex, "a member that joins names its topics or an expression")


def _refuse_if(wrong: bool, reason: str) -> None:
    if wrong:
        raise RequestError(reason)


MayDescribe = Callable[[str], bool]  # a member's expression matches only topics that its principal may describe


def heartbeat(
    group: ConsumerGroup | None,
    request: Heartbeat,
    topics: Topics,
    rules: ConsumerGroupConfig,
    may_describe: MayDescribe,
    now: CoordinatorTime,
) -> tuple[HeartbeatReply, ConsumerGroupUpdate]:
    check_form(request, rules)
    if group is None and request.epoch != JOINING:
        raise GroupNotFound(f"there is no consumer group {request.group_id}")
    draft = ConsumerGroupUpdate(group if group is not None else ConsumerGroup(request.group_id))
    if request.epoch in (LEAVING, LEAVE_GROUP_STATIC_MEMBER_EPOCH):
        return _leave(draft, request, topics), draft
    return live(draft, request, topics, rules, may_describe, now), draft


def live(
    draft: ConsumerGroupUpdate,
    request: Heartbeat,
    topics: Topics,
    rules: ConsumerGroupConfig,
    may_describe: MayDescribe,
    now: CoordinatorTime,
) -> HeartbeatReply:
    """Handles a heartbeat of a new or known member: updates its subscription and returns its current assignment."""
    before = admit(draft, request, rules)
    changed = _subscribe(draft, request, topics, may_describe)
    _maybe_bump_group_epoch(draft, topics, changed)
    _maybe_update_target_assignment(draft, topics, rules, now)
    after = _step(draft, request, before, now)
    session_ms = rules.session_timeout_ms if request.classic is None else request.classic.session_timeout_ms
    draft.timers.append(Timer(session_timer(request.group_id, request.member_id), now + session_ms))
    tells_all = request.epoch == JOINING or request.is_full or request.epoch != before.epoch
    assigned = after.assigned if tells_all or after.assigned != before.assigned else None
    return HeartbeatReply(request.member_id, after.epoch, rules.heartbeat_interval_ms, assigned)


# Leaving


def _leave(draft: ConsumerGroupUpdate, request: Heartbeat, topics: Topics) -> HeartbeatReply:
    group = draft.group
    leaver(group, request)
    if request.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        away = group.holding(request.member_id)._replace(epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH, revoking=NO_PARTITIONS)
        draft.add(HoldingOf(group.group_id, request.member_id, away))
        draft.timers.append(Timer(rebalance_timer(group.group_id, request.member_id), None))
    else:
        remove(draft, request.member_id, topics, "left")
    return HeartbeatReply(request.member_id, request.epoch, 0, None)


def remove(draft: ConsumerGroupUpdate, member_id: str, topics: Topics, why: str) -> None:
    draft.remove_member(member_id)
    draft.raise_epoch(topics, f"member {member_id} {why}")


# Subscribing


def _subscribe(draft: ConsumerGroupUpdate, request: Heartbeat, topics: Topics, may_describe: MayDescribe) -> str | None:
    """Updates the member's subscription. Returns the reason for a new assignment, or None if none is needed."""
    group = draft.group
    before = group.subscriptions.get(request.member_id)
    after = _updated(before or Subscription(), request)
    if after != before:
        draft.add(MemberSubscribed(group.group_id, request.member_id, after))
    resolved_anew = _resolve(draft, after.regex, topics, may_describe)
    if before is not None and before.regex != after.regex:
        draft.forget_regex(before.regex)
    if before is None:
        return f"member {request.member_id} joined"
    if (before.topics, before.regex) != (after.topics, after.regex):
        return f"member {request.member_id} changed its subscription"
    if before.assignor != after.assignor:
        return f"member {request.member_id} selected another assignor"
    return f"the expression {after.regex!r} means other topics" if resolved_anew else None


def _updated(before: Subscription, request: Heartbeat) -> Subscription:
    return Subscription(
        topics=tuple(sorted(set(request.topics))) if request.topics is not None else before.topics,
        regex=(request.regex or None) if request.regex is not None else before.regex,
        instance_id=request.instance_id if request.instance_id is not None else before.instance_id,
        rack_id=request.rack_id if request.rack_id is not None else before.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if request.rebalance_timeout_ms != -1 else before.rebalance_timeout_ms
        ),
        assignor=request.assignor if request.assignor is not None else before.assignor,
        classic=request.classic,
    )


def _resolve(draft: ConsumerGroupUpdate, regex: str | None, topics: Topics, may_describe: MayDescribe) -> bool:
    """Matches the expression again if topics were created or deleted since.

    Returns whether it matches other topics now.
    """
    if not regex:
        return False
    known = draft.group.regexes.get(regex)
    version = topics.names_version
    if known is not None and known.version == version:
        return False
    found = frozenset(name for name in topics.matching(regex) if may_describe(name))
    draft.add(RegexResolved(draft.group.group_id, regex, ResolvedTopics(found, version)))
    return known is not None and known.topics != found


# Assigning


def _maybe_bump_group_epoch(draft: ConsumerGroupUpdate, topics: Topics, changed: str | None) -> None:
    group = draft.group
    if changed is None and topics.hash_of(group.subscribed_topics()) != group.topics_hash:
        changed = "subscribed topics have changed"
    if changed is not None:
        draft.raise_epoch(topics, changed)


def _maybe_update_target_assignment(
    draft: ConsumerGroupUpdate, topics: Topics, rules: ConsumerGroupConfig, now: CoordinatorTime
) -> None:
    """Computes the target assignment of the group's epoch, and writes the targets that changed.

    A target that is too recent stays for now. The next heartbeat of any member checks again.
    """
    group = draft.group
    if group.epoch <= group.target_epoch or group.keeps_target(rules.assignment_interval_ms, now.wall_ms):
        return
    target_epoch = group.epoch
    for member_id, partitions in target_of(group, topics, rules).items():
        if group.targets.get(member_id) != partitions:
            draft.add(TargetOf(group.group_id, member_id, partitions))
    draft.add(TargetEpoch(group.group_id, target_epoch, now.wall_ms))


def target_of(group: ConsumerGroup, topics: Topics, rules: ConsumerGroupConfig) -> dict[str, Partitions]:
    views = {view.topic_id: view for name in group.subscribed_topics() if (view := topics.get(name)) is not None}
    members = {
        member_id: Candidate(
            topics=frozenset(view.topic_id for name in group.topics_of(one) if (view := topics.get(name)) is not None),
            rack=one.rack_id,
            instance_id=one.instance_id,
            had=group.target(member_id),
        )
        for member_id, one in group.subscriptions.items()
    }
    return ASSIGNORS[preferred_assignor(group, rules)](members, views)


def preferred_assignor(group: ConsumerGroup, rules: ConsumerGroupConfig) -> str:
    """Returns the assignor that most members request."""
    votes = Counter(one.assignor for one in group.subscriptions.values() if one.assignor in rules.assignors)
    return min(votes, key=lambda name: (-votes[name], name or "")) or "" if votes else rules.assignors[0]


# Reconciling


def _step(draft: ConsumerGroupUpdate, request: Heartbeat, before: CurrentAssignment, now_ms: int) -> CurrentAssignment:
    group, member_id = draft.group, request.member_id
    after = reconciled(
        before,
        group.target(member_id),
        group.target_epoch,
        request.owned,
        lambda topic_id, index: group.owners.get((topic_id, index), member_id) == member_id,
    )
    if after != group.holdings.get(member_id):
        draft.add(HoldingOf(group.group_id, member_id, after))
        due_ms = None
        if after.state is MemberState.UNREVOKED:
            due_ms = now_ms + group.subscriptions[member_id].rebalance_timeout_ms
        draft.timers.append(Timer(rebalance_timer(group.group_id, member_id), due_ms))
    return after
