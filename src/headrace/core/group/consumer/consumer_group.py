"""State of one consumer group. Only `apply` changes it, live and at recovery alike.

    subscriptions   what the members subscribe to            (every member has a subscription)
    targets         target assignment of each member, computed for `target_epoch`
    holdings        current assignment of each member
    regexes         topics that the members' expressions matched
    owners          owner of each partition: derived from the holdings

After compaction the records of a member may come in any order, so each kind is independent of the others.
"""

from collections.abc import Iterable
from typing import TypeVar
from uuid import UUID

from headrace.core.group.consumer.assignment import pairs
from headrace.core.group.consumer.model import (
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    NEWCOMER,
    NO_PARTITIONS,
    CurrentAssignment,
    GroupEpoch,
    HoldingOf,
    MemberState,
    MemberSubscribed,
    ModernFact,
    Partitions,
    RegexResolved,
    ResolvedTopics,
    Subscription,
    TargetEpoch,
    TargetOf,
)

Value = TypeVar("Value")


class ConsumerGroup:
    __slots__ = (
        "epoch",
        "group_id",
        "holdings",
        "instances",
        "owners",
        "regexes",
        "subscriptions",
        "target_epoch",
        "target_made_ms",
        "targets",
        "topics_hash",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.topics_hash = 0
        self.target_epoch = 0
        self.target_made_ms = 0
        self.subscriptions: dict[str, Subscription] = {}
        self.targets: dict[str, Partitions] = {}
        self.holdings: dict[str, CurrentAssignment] = {}
        self.regexes: dict[str, ResolvedTopics] = {}
        self.instances: dict[str, str] = {}  # instance id → member id
        self.owners: dict[tuple[UUID, int], str] = {}

    def copy(self) -> "ConsumerGroup":
        twin = ConsumerGroup(self.group_id)
        twin.epoch, twin.topics_hash = self.epoch, self.topics_hash
        twin.target_epoch, twin.target_made_ms = self.target_epoch, self.target_made_ms
        twin.subscriptions = self.subscriptions.copy()
        twin.targets = self.targets.copy()
        twin.holdings = self.holdings.copy()
        twin.regexes = self.regexes.copy()
        twin.instances = self.instances.copy()
        twin.owners = self.owners.copy()
        return twin

    # Queries

    @property
    def state(self) -> str:
        """Returns the group state by Kafka's name."""
        if not self.subscriptions:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if any(not self.is_settled(member_id) for member_id in self.subscriptions):
            return "Reconciling"
        return "Stable"

    def is_settled(self, member_id: str) -> bool:
        """Returns whether the member has its whole target assignment.

        A static member that left temporarily keeps its assignment.
        """
        holding = self.holding(member_id)
        if holding.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
            return True
        return holding.state is MemberState.STABLE and holding.epoch == self.target_epoch

    def holding(self, member_id: str) -> CurrentAssignment:
        return self.holdings.get(member_id, NEWCOMER)

    def keeps_target(self, interval_ms: int, wall_ms: int) -> bool:
        """Returns whether the target assignment is too recent to be replaced. False if the wall clock was set back."""
        return self.target_made_ms != 0 and 0 <= wall_ms - self.target_made_ms < interval_ms

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def topics_of(self, subscription: Subscription) -> frozenset[str]:
        names = frozenset(subscription.topics)
        resolved = self.regexes.get(subscription.regex) if subscription.regex else None
        return names | resolved.topics if resolved is not None else names

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*(self.topics_of(one) for one in self.subscriptions.values()))

    def uses_regex(self, regex: str) -> bool:
        return any(one.regex == regex for one in self.subscriptions.values())

    # Changes

    def apply(self, fact: ModernFact) -> None:
        match fact:
            case GroupEpoch(_, epoch, topics_hash):
                self.epoch, self.topics_hash = epoch or 0, topics_hash
            case MemberSubscribed(_, member_id, subscription):
                self._subscribe(member_id, subscription)
            case TargetEpoch(_, epoch, made_ms):
                self.target_epoch, self.target_made_ms = epoch or 0, made_ms
            case TargetOf(_, member_id, partitions):
                _put(self.targets, member_id, partitions)
            case HoldingOf(_, member_id, holding):
                self._hold(member_id, holding)
            case RegexResolved(_, regex, resolved):
                _put(self.regexes, regex, resolved)

    def _subscribe(self, member_id: str, subscription: Subscription | None) -> None:
        before = self.subscriptions.get(member_id)
        instance_id = before.instance_id if before is not None else None
        if instance_id is not None and self.instances.get(instance_id) == member_id:
            del self.instances[instance_id]
        _put(self.subscriptions, member_id, subscription)
        if subscription is not None and subscription.instance_id is not None:
            self.instances[subscription.instance_id] = member_id

    def _hold(self, member_id: str, holding: CurrentAssignment | None) -> None:
        for partition in _held(self.holdings.get(member_id)):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        _put(self.holdings, member_id, holding)
        for partition in _held(holding):
            self.owners[partition] = member_id


def _held(holding: CurrentAssignment | None) -> Iterable[tuple[UUID, int]]:
    if holding is None:
        return ()
    return (partition for part in (holding.assigned, holding.revoking) for partition in pairs(part))


def _put(table: dict[str, Value], key: str, value: Value | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
