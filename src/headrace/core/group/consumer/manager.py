"""Group manager of consumer-protocol groups: routes requests, records and timers to their group.

Heartbeats are handled in `heartbeat.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.core.coordinator import Answer, CoordinatorRecord, CoordinatorTime, Decision, RequestId, Timer, merged
from headrace.core.group.consumer import classic_members, records
from headrace.core.group.consumer.consumer_group import ConsumerGroup
from headrace.core.group.consumer.downgrade import convert_to_classic_group
from headrace.core.group.consumer.heartbeat import MayDescribe, heartbeat, remove
from headrace.core.group.consumer.model import (
    FAMILY,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    ConsumerGroupConfig,
    GroupEpoch,
    Heartbeat,
    HoldingOf,
    MemberState,
    MemberSubscribed,
    ModernFact,
    Rebalance,
    RegexResolved,
    TargetEpoch,
    TargetOf,
    rebalance_timer,
    session_timer,
)
from headrace.core.group.consumer.topic_metadata import Topics
from headrace.core.group.consumer.update import ConsumerGroupUpdate
from headrace.core.group.coordinator_shard import GroupCoordinatorShard
from headrace.core.group.errors import GroupNotFound, IllegalGeneration, StaleMemberEpoch, UnknownMember
from headrace.core.group.group_manager import Committer, OffsetExpirationCondition, split_timer
from headrace.core.group.model import CONSUMER_PROTOCOL_TYPE, GroupListing, JoinRequest, MemberIdentity, SyncRequest
from headrace.core.group.rebalance_history import History, Rebalanced
from headrace.model.errors import UnsupportedVersion

# Older versions of the OffsetCommit response cannot carry the error for a stale epoch.
COMMIT_VERSION_MIN = 9


def consumer_groups(machine: GroupCoordinatorShard) -> "ConsumerGroups":
    """Returns the consumer group manager of a shard that has one."""
    return next(family for family in machine.families if isinstance(family, ConsumerGroups))


class ConsumerGroups:
    name = FAMILY
    record_kinds = records.KINDS
    fact_types: tuple[type, ...] = (
        GroupEpoch,
        MemberSubscribed,
        TargetEpoch,
        TargetOf,
        HoldingOf,
        RegexResolved,
        Rebalance,
    )

    def __init__(
        self, topics: Topics, rules_of: Callable[[str], ConsumerGroupConfig], history: History | None = None
    ) -> None:
        self.topics = topics
        self._history = history
        self._rules_of = rules_of
        self.groups: dict[str, ConsumerGroup] = {}

    # Requests

    def report(
        self,
        request: Heartbeat,
        may_describe: MayDescribe,
        ticket: RequestId,
        now: CoordinatorTime,
        group: ConsumerGroup | None = None,
    ) -> Decision[Any]:
        """Handles ConsumerGroupHeartbeat. `group` is the group's new state where the same decision changes it."""
        rules = self._rules_of(request.group_id)
        group = group if group is not None else self.groups.get(request.group_id)
        reply, draft = heartbeat(group, request, self.topics, rules, may_describe, now)
        return merged([Decision(answers=(Answer(ticket, reply),)), self._come_of(draft, now)])

    def _come_of(self, draft: ConsumerGroupUpdate, now: CoordinatorTime) -> Decision[Any]:
        """Returns the decision for a draft. Downgrades a group that has only classic-protocol members left."""
        decision: Decision[Any] = Decision(facts=self._noted(draft, now), timers=draft.timers)
        one_has_gone = draft.before.subscriptions.keys() - draft.group.subscriptions.keys()
        if one_has_gone and self._rules_of(draft.group.group_id).may_downgrade:
            back = convert_to_classic_group(draft, self.topics, now)
            if back is not None:
                return merged([decision, back])
        return decision

    def _noted(self, draft: ConsumerGroupUpdate, now: CoordinatorTime) -> Sequence[ModernFact | Rebalanced]:
        """Returns the draft's records, with those that it adds to the rebalance history."""
        if self._history is None or not draft.facts:
            return draft.facts
        begun = next((fact for fact in draft.facts if isinstance(fact, Rebalance)), None)
        return [*draft.facts, *self._history.of_modern(draft.before, draft.group, begun, now)]

    # Classic-protocol members

    def join(self, request: JoinRequest, new_id: str, ticket: RequestId, now: CoordinatorTime) -> Decision[Any]:
        group, rules = self.groups[request.group_id], self._rules_of(request.group_id)
        reply, draft = classic_members.join(group, request, new_id, self.topics, rules, now)
        return Decision(answers=(Answer(ticket, reply),), facts=self._noted(draft, now), timers=draft.timers)

    def sync(self, request: SyncRequest, ticket: RequestId, now: CoordinatorTime) -> Decision[Any]:
        reply, timer = classic_members.sync(self.groups[request.group_id], request, self.topics, now)
        return Decision(answers=(Answer(ticket, reply),), timers=(timer,))

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        ticket: RequestId,
        now: CoordinatorTime,
    ) -> Decision[Any]:
        group = self.groups[group_id]
        reply, timer = classic_members.heartbeat(group, member_id, instance_id, generation, now)
        return Decision(answers=(Answer(ticket, reply),), timers=(timer,))

    def leave(
        self, group_id: str, leaving: Sequence[MemberIdentity], ticket: RequestId, now: CoordinatorTime
    ) -> Decision[Any]:
        outcomes, draft = classic_members.leave(self.groups[group_id], leaving, self.topics)
        return Decision(answers=(Answer(ticket, outcomes),), facts=self._noted(draft, now), timers=draft.timers)

    def get(self, group_id: str) -> ConsumerGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise GroupNotFound(f"there is no consumer group {group_id}")
        return group

    def rules_of(self, group_id: str) -> ConsumerGroupConfig:
        return self._rules_of(group_id)

    # Group manager interface

    def encode(self, fact: ModernFact) -> CoordinatorRecord | None:
        return records.encode(fact)

    def apply(self, fact: ModernFact, offset: int) -> None:
        if isinstance(fact, GroupEpoch) and fact.epoch is None:
            self.groups.pop(fact.group_id, None)
        elif fact.group_id in self.groups:
            self.groups[fact.group_id].apply(fact)
        elif not _forgets(fact):
            group = self.groups[fact.group_id] = ConsumerGroup(fact.group_id)
            group.apply(fact)

    def replay(self, kind: int, record: CoordinatorRecord, offset: int) -> None:
        fact = records.decode(record)
        if fact is not None:
            self.apply(fact, offset)

    def loaded(self, now: CoordinatorTime) -> Decision[Any]:
        """Restarts every member's session timeout: members could not reach this coordinator while it was loading."""
        timers = []
        for group in self.groups.values():
            rules = self._rules_of(group.group_id)
            for member_id, one in group.subscriptions.items():
                session_ms = rules.session_timeout_ms if one.classic is None else one.classic.session_timeout_ms
                timers.append(Timer(session_timer(group.group_id, member_id), now + session_ms))
                holding = group.holding(member_id)
                # A static member that left temporarily cannot revoke anything. Its session timeout removes it.
                if holding.state is MemberState.UNREVOKED and holding.epoch != LEAVE_GROUP_STATIC_MEMBER_EPOCH:
                    due_ms = now + one.rebalance_timeout_ms
                    timers.append(Timer(rebalance_timer(group.group_id, member_id), due_ms))
        return Decision(timers=timers)

    def expire(self, timer: str, now: CoordinatorTime) -> Decision[Any]:
        kind, group_id, member_id = split_timer(timer)
        group = self.groups.get(group_id)
        if group is None or member_id not in group.subscriptions:
            return Decision()
        if kind == "rebalance" and group.holding(member_id).state is not MemberState.UNREVOKED:
            return Decision()
        why = "was silent for too long" if kind == "session" else "did not give up its partitions in time"
        draft = ConsumerGroupUpdate(group)
        remove(draft, member_id, self.topics, why)
        return self._come_of(draft, now)

    # Queries and checks

    def holds(self, group_id: str) -> bool:
        return group_id in self.groups

    def is_empty(self, group_id: str) -> bool:
        return not self.groups[group_id].subscriptions

    def listings(self) -> Iterable[GroupListing]:
        for group in self.groups.values():
            yield GroupListing(group.group_id, CONSUMER_PROTOCOL_TYPE, group.state, self.name)

    def check_commit(self, group_id: str, committer: Committer, now: CoordinatorTime) -> Sequence[Timer]:
        group = self.groups[group_id]
        if committer.generation < 0 and not group.subscriptions:
            return ()  # an administrator sets the offsets of an empty group
        self._check_epoch(group, committer)
        if committer.api_version < COMMIT_VERSION_MIN and not committer.transactional:
            subscription = group.subscriptions[committer.member_id]
            if subscription.classic is None:
                raise UnsupportedVersion(f"members of {group_id} commit with version {COMMIT_VERSION_MIN} or later")
        return ()

    def check_fetch(self, group_id: str, committer: Committer) -> None:
        if committer.member_id or committer.generation >= 0:
            self._check_epoch(self.groups[group_id], committer)

    @staticmethod
    def _check_epoch(group: ConsumerGroup, committer: Committer) -> None:
        subscription = group.subscriptions.get(committer.member_id)
        if subscription is None:
            raise UnknownMember(f"group {group.group_id} has no member {committer.member_id!r}")
        epoch = group.holding(committer.member_id).epoch
        if committer.generation == epoch:
            return
        if subscription.classic is not None or committer.transactional:
            raise IllegalGeneration(f"member {committer.member_id} is at generation {epoch}")
        raise StaleMemberEpoch(f"member {committer.member_id} is at epoch {epoch}, not {committer.generation}")

    def subscribed_topics(self, group_id: str) -> frozenset[str] | None:
        return self.groups[group_id].subscribed_topics()

    def offsets_rule(self, group_id: str) -> OffsetExpirationCondition:
        return OffsetExpirationCondition(keeps_topics=self.groups[group_id].subscribed_topics())

    def forget(self, group_id: str) -> Sequence[ModernFact]:
        group = self.groups[group_id]
        assert not group.subscriptions, "only an empty group is forgotten"
        regexes = [RegexResolved(group_id, regex, None) for regex in group.regexes]
        return [*regexes, TargetEpoch(group_id, None), GroupEpoch(group_id, None)]


def _forgets(fact: ModernFact) -> bool:
    """Returns whether the record is a tombstone, for which no group is created."""
    match fact:
        case MemberSubscribed(_, _, content) | TargetOf(_, _, content) | HoldingOf(_, _, content):
            return content is None
        case RegexResolved(_, _, resolved):
            return resolved is None
        case TargetEpoch(_, epoch):
            return epoch is None
        case Rebalance():
            return True
        case GroupEpoch():
            return False
